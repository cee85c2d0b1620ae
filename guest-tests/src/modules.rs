//! Finds kernel modules, reads their dependencies, and decompresses them.
//!
//! Debian's kernel packages do not contain `modules.dep`, which a maintainer script normally generates. Dependencies
//! are therefore read from the modules themselves.

use std::collections::HashMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// A module ready for `finit_module`.
#[derive(Clone, Debug)]
pub struct Module {
    /// Name of the module, with underscores.
    pub name: String,
    /// The object file, uncompressed.
    pub object: Vec<u8>,
}

/// Reads a user-supplied module. Returns its object file and version string.
///
/// # Errors
/// Fails if the file cannot be read or is not a module.
pub fn read_with_version(file: &Path) -> Result<(Vec<u8>, String)> {
    let object = read(file)?;
    let Some(version) = modinfo(&object, "vermagic") else {
        bail!("{} is not a kernel module: it has no vermagic string", file.display())
    };
    Ok((object, version))
}

/// Modules of one kernel, in loading order.
#[derive(Debug)]
pub struct ModuleList {
    files: HashMap<String, PathBuf>,
    builtin: Vec<String>,
    modules: Vec<Module>,
}

impl ModuleList {
    /// Creates an empty list for the kernel whose modules are under `folder`.
    ///
    /// # Errors
    /// Fails if the directory cannot be read.
    pub fn new(folder: &Path) -> Result<Self> {
        Ok(Self { files: index(folder)?, builtin: builtin(folder), modules: Vec::new() })
    }

    /// Returns whether the kernel has a loadable module named `name`.
    pub fn exists(&self, name: &str) -> bool {
        self.files.contains_key(&canonical(name))
    }

    /// Adds a module and its dependencies. Built-in modules are skipped.
    ///
    /// # Errors
    /// Fails if a module cannot be read, or if it neither exists nor is built in.
    pub fn add(&mut self, name: &str) -> Result<()> {
        let name = canonical(name);
        // The recursion terminates, since module dependencies do not have cycles.
        if self.modules.iter().any(|m| m.name == name) || self.builtin.contains(&name) {
            return Ok(());
        }
        let Some(path) = self.files.get(&name) else { bail!("the guest kernel has no module named {name}") };
        let object = read(path)?;
        self.add_object(name, object)
    }

    /// Checks whether the kernel would load a user-supplied module, by comparing the module's version string with that
    /// of the kernel's own modules.
    ///
    /// # Errors
    /// Fails if the file is not a module or if the version strings do not match.
    pub fn check_file(&self, file: &Path) -> Result<()> {
        let (object, own) = read_with_version(file)?;
        let Some(example) = self.files.values().min() else {
            bail!("the guest kernel has no loadable modules, so {} cannot be checked", file.display())
        };
        let Some(kernel) = modinfo(&read(example)?, "vermagic") else { return Ok(()) };
        // If the kernel compares symbol checksums, it ignores the release in the version string.
        let has_checksums = object.windows(VERSIONS.len()).any(|window| window == VERSIONS);
        let words =
            |magic: &str| magic.split_once(' ').map(|(_, words)| words.to_owned()).unwrap_or_default();
        if own == kernel || has_checksums && words(&own) == words(&kernel) {
            return Ok(());
        }
        bail!(
            "{} was built for the kernel '{}', but the guests run '{}'; build it with 'guest-lab build', or choose another \
             kernel with --kernel",
            file.display(),
            own.trim_end(),
            kernel.trim_end()
        )
    }

    /// Adds a user-supplied module, which replaces the kernel's module with the same name.
    ///
    /// # Errors
    /// Fails if the module cannot be read or if the kernel lacks a dependency.
    pub fn add_file(&mut self, file: &Path) -> Result<()> {
        let name = name_of(file)?;
        self.modules.retain(|module| module.name != name);
        let object = read(file)?;
        self.add_object(name, object).with_context(|| file.display().to_string())
    }

    /// Returns the modules in loading order.
    pub fn finish(self) -> Vec<Module> {
        self.modules
    }

    fn add_object(&mut self, name: String, object: Vec<u8>) -> Result<()> {
        for dependency in dependencies(&object) {
            self.add(&dependency)?;
        }
        self.modules.push(Module { name, object });
        Ok(())
    }
}

/// Derives a module's name from its file name.
///
/// # Errors
/// Fails if the path has no file name or if the file name is not UTF-8.
pub fn name_of(file: &Path) -> Result<String> {
    let stem = file.file_name().and_then(|name| name.to_str()?.split('.').next());
    Ok(canonical(stem.with_context(|| {
        format!("{} is not a module file name; expected a name such as driver.ko", file.display())
    })?))
}

/// Finds a module's file under `folder`.
///
/// # Errors
/// Fails if the module does not exist.
pub fn find(folder: &Path, name: &str) -> Result<PathBuf> {
    index(folder)?
        .remove(&canonical(name))
        .with_context(|| format!("the guest kernel has no module named {name}"))
}

/// Reads a user-supplied module. Returns the uncompressed object and the names of its dependencies.
///
/// # Errors
/// Fails if the file cannot be read.
pub fn open(file: &Path) -> Result<(Vec<u8>, Vec<String>)> {
    let object = read(file)?;
    let needs = dependencies(&object);
    Ok((object, needs))
}

/// Common prefix of the section names for symbol checksums. An object that contains this prefix has symbol checksums.
const VERSIONS: &[u8] = b"\0__version";

/// Converts dashes to underscores, as the kernel does. File names may contain either.
fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

fn index(folder: &Path) -> Result<HashMap<String, PathBuf>> {
    let mut files = HashMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else if let Some((stem, "ko" | "ko.xz")) =
                entry.file_name().to_str().and_then(|name| name.split_once('.'))
            {
                files.insert(canonical(stem), entry.path());
            }
        }
    }
    Ok(files)
}

fn builtin(folder: &Path) -> Vec<String> {
    let text = fs::read_to_string(folder.join("modules.builtin")).unwrap_or_default();
    text.lines().filter_map(|line| Some(canonical(Path::new(line).file_stem()?.to_str()?))).collect()
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let bytes = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    if path.extension().is_none_or(|extension| extension != "xz") {
        return Ok(bytes);
    }
    let mut object = Vec::new();
    lzma_rust2::XzReader::new(bytes.as_slice(), false)
        .read_to_end(&mut object)
        .with_context(|| format!("cannot decompress {}", path.display()))?;
    Ok(object)
}

fn dependencies(object: &[u8]) -> Vec<String> {
    let list = modinfo(object, "depends").unwrap_or_default();
    list.split(',').filter(|name| !name.is_empty()).map(canonical).collect()
}

/// Returns an entry of the object's `.modinfo` section, which is a list of NUL-terminated `key=value` strings.
fn modinfo(object: &[u8], key: &str) -> Option<String> {
    let key = format!("\0{key}=");
    let start = object.windows(key.len()).position(|window| window == key.as_bytes())?;
    let value = object.get(start + key.len()..)?;
    let value = value.split(|&byte| byte == 0).next().unwrap_or_default();
    Some(String::from_utf8_lossy(value).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(depends: &str) -> Vec<u8> {
        format!("\x7fELF...\0license=GPL\0depends={depends}\0name=x\0").into_bytes()
    }

    #[test]
    fn dependencies_are_loaded_once_before_dependents() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("deep")).unwrap();
        fs::write(folder.path().join("deep/vfio-pci.ko"), object("vfio-pci-core,vfio,virtio")).unwrap();
        fs::write(folder.path().join("vfio-pci-core.ko"), object("vfio")).unwrap();
        fs::write(folder.path().join("vfio.ko"), object("")).unwrap();
        fs::write(folder.path().join("modules.builtin"), "kernel/drivers/virtio/virtio.ko\n").unwrap();
        let mut wanted = ModuleList::new(folder.path()).unwrap();
        wanted.add("vfio_pci").unwrap();
        wanted.add("vfio").unwrap();
        let names = wanted.finish().into_iter().map(|module| module.name);
        assert_eq!(names.collect::<Vec<_>>(), ["vfio", "vfio_pci_core", "vfio_pci"]);
    }

    #[test]
    fn module_given_as_file_replaces_stock_module() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("ib_core.ko"), object("")).unwrap();
        fs::write(folder.path().join("rdma_rxe.ko"), object("")).unwrap();
        let own = tempfile::tempdir().unwrap();
        let file = own.path().join("rdma-rxe.ko");
        fs::write(&file, object("ib_core")).unwrap();
        let mut wanted = ModuleList::new(folder.path()).unwrap();
        wanted.add("rdma_rxe").unwrap();
        wanted.add_file(&file).unwrap();
        let modules = wanted.finish();
        let names: Vec<&str> = modules.iter().map(|module| module.name.as_str()).collect();
        assert_eq!(names, ["ib_core", "rdma_rxe"]);
        assert_eq!(modules[1].object, object("ib_core"));
    }

    #[test]
    fn rejects_module_built_for_different_kernel() {
        let folder = tempfile::tempdir().unwrap();
        let module = |magic: &str, more: &str| format!("\x7fELF\0vermagic={magic} \0depends=\0{more}");
        fs::write(folder.path().join("ib_core.ko"), module("7.3.4 SMP mod_unload modversions", "")).unwrap();
        let wanted = ModuleList::new(folder.path()).unwrap();
        let own = tempfile::tempdir().unwrap();
        let file = own.path().join("own.ko");
        let check = |text: String| {
            fs::write(&file, text).unwrap();
            wanted.check_file(&file).map_err(|error| error.to_string())
        };
        assert_eq!(check(module("7.3.4 SMP mod_unload modversions", "")), Ok(()));
        assert_eq!(check(module("7.3.3 SMP mod_unload modversions", "__versions\0")), Ok(()));
        let other = check(module("7.3.3 SMP mod_unload modversions", "")).unwrap_err();
        assert!(
            other.contains(
                "built for the kernel '7.3.3 SMP mod_unload modversions', but the guests run '7.3.4"
            ),
            "{other}"
        );
        let other = check(module("7.3.4 SMP preempt mod_unload", "__versions\0")).unwrap_err();
        assert!(other.contains("preempt"), "{other}");
        assert!(check("text".into()).unwrap_err().contains("is not a kernel module"));
    }

    #[test]
    fn error_for_missing_module_contains_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let error = ModuleList::new(folder.path()).unwrap().add("ib-mthca").unwrap_err();
        assert!(error.to_string().contains("ib_mthca"), "{error:#}");
    }
}
