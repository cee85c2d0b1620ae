//! Kernel modules: where they are, what they need, and their uncompressed bytes.
//!
//! The packages' folder has no `modules.dep` (a maintainer script would make it), so each module is asked itself.

use std::collections::HashMap;
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// A module ready for `finit_module`.
#[derive(Clone, Debug)]
pub struct Module {
    /// Name, with underscores.
    pub name: String,
    /// The object, uncompressed.
    pub object: Vec<u8>,
}

/// Modules of one kernel that are to be loaded, each after what it depends on.
#[derive(Debug)]
pub struct Wanted {
    files: HashMap<String, PathBuf>,
    builtin: Vec<String>,
    modules: Vec<Module>,
}

impl Wanted {
    /// None yet, of the kernel whose modules are below `folder`.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn new(folder: &Path) -> Result<Self> {
        Ok(Self { files: index(folder)?, builtin: builtin(folder), modules: Vec::new() })
    }

    /// Whether the kernel has a module of this name that is not built in.
    pub fn exists(&self, name: &str) -> bool {
        self.files.contains_key(&canonical(name))
    }

    /// Adds a module; one that is built into the kernel is passed over.
    ///
    /// # Errors
    /// When it or what it depends on is neither there nor built in, or cannot be read.
    pub fn add(&mut self, name: &str) -> Result<()> {
        let name = canonical(name);
        // Module dependencies are acyclic, or no order could load them.
        if self.modules.iter().any(|m| m.name == name) || self.builtin.contains(&name) {
            return Ok(());
        }
        let Some(path) = self.files.get(&name) else { bail!("the kernel has no module {name}") };
        let object = read(path)?;
        self.add_object(name, object)
    }

    /// Adds a module of the user's own. It stands in for one of the kernel's of the same name.
    ///
    /// # Errors
    /// When it cannot be read, or depends on something the kernel does not have.
    pub fn add_file(&mut self, file: &Path) -> Result<()> {
        let stem = file.file_name().and_then(|name| name.to_str()?.split('.').next());
        let name = canonical(stem.with_context(|| format!("{} is no file of a module", file.display()))?);
        self.modules.retain(|module| module.name != name);
        let object = read(file)?;
        self.add_object(name, object).with_context(|| file.display().to_string())
    }

    /// The modules in loading order.
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

/// File names use dashes and underscores at will; the kernel uses underscores.
fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

fn index(folder: &Path) -> Result<HashMap<String, PathBuf>> {
    let mut files = HashMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))? {
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
    let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    if path.extension().is_none_or(|extension| extension != "xz") {
        return Ok(bytes);
    }
    let mut object = Vec::new();
    lzma_rust2::XzReader::new(bytes.as_slice(), false)
        .read_to_end(&mut object)
        .with_context(|| format!("decompressing {}", path.display()))?;
    Ok(object)
}

/// The `depends=` entry of the object's `.modinfo`: a list of zero-terminated `key=value` strings.
fn dependencies(object: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(start) = object.windows(KEY.len()).position(|window| window == KEY) else { return Vec::new() };
    let value = &object[start + KEY.len()..];
    let value = &value[..value.iter().position(|&b| b == 0).unwrap_or(value.len())];
    String::from_utf8_lossy(value).split(',').filter(|name| !name.is_empty()).map(canonical).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(depends: &str) -> Vec<u8> {
        format!("\x7fELF...\0license=GPL\0depends={depends}\0name=x\0").into_bytes()
    }

    #[test]
    fn dependencies_come_first_and_once_and_built_in_ones_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("deep")).unwrap();
        fs::write(folder.path().join("deep/vfio-pci.ko"), object("vfio-pci-core,vfio,virtio")).unwrap();
        fs::write(folder.path().join("vfio-pci-core.ko"), object("vfio")).unwrap();
        fs::write(folder.path().join("vfio.ko"), object("")).unwrap();
        fs::write(folder.path().join("modules.builtin"), "kernel/drivers/virtio/virtio.ko\n").unwrap();
        let mut wanted = Wanted::new(folder.path()).unwrap();
        wanted.add("vfio_pci").unwrap();
        wanted.add("vfio").unwrap();
        let names = wanted.finish().into_iter().map(|module| module.name);
        assert_eq!(names.collect::<Vec<_>>(), ["vfio", "vfio_pci_core", "vfio_pci"]);
    }

    #[test]
    fn a_module_of_ones_own_comes_after_what_it_needs_and_replaces_the_stock_one() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("ib_core.ko"), object("")).unwrap();
        fs::write(folder.path().join("rdma_rxe.ko"), object("")).unwrap();
        let own = tempfile::tempdir().unwrap();
        let file = own.path().join("rdma-rxe.ko");
        fs::write(&file, object("ib_core")).unwrap();
        let mut wanted = Wanted::new(folder.path()).unwrap();
        wanted.add("rdma_rxe").unwrap();
        wanted.add_file(&file).unwrap();
        let modules = wanted.finish();
        let names: Vec<&str> = modules.iter().map(|module| module.name.as_str()).collect();
        assert_eq!(names, ["ib_core", "rdma_rxe"]);
        assert_eq!(modules[1].object, object("ib_core"));
    }

    #[test]
    fn a_module_that_is_nowhere_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = Wanted::new(folder.path()).unwrap().add("ib-mthca").unwrap_err();
        assert!(error.to_string().contains("ib_mthca"), "{error}");
    }
}
