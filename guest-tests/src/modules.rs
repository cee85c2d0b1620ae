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

/// Reads `names` and everything they depend on below `folder`, dependencies first. Names of modules that are built
/// into the kernel are passed over.
///
/// # Errors
/// When a module is neither there nor built in, or cannot be read.
pub fn with_dependencies(folder: &Path, names: &[&str]) -> Result<Vec<Module>> {
    let mut found = Found { files: index(folder)?, builtin: builtin(folder), modules: Vec::new() };
    for name in names {
        found.add(&canonical(name))?;
    }
    Ok(found.modules)
}

struct Found {
    files: HashMap<String, PathBuf>,
    builtin: Vec<String>,
    modules: Vec<Module>,
}

impl Found {
    fn add(&mut self, name: &str) -> Result<()> {
        // Module dependencies are acyclic, or no order could load them.
        if self.modules.iter().any(|m| m.name == name) || self.builtin.iter().any(|b| b == name) {
            return Ok(());
        }
        let Some(path) = self.files.get(name) else { bail!("the kernel has no module {name}") };
        let object = read(path)?;
        for dependency in dependencies(&object) {
            self.add(&dependency)?;
        }
        self.modules.push(Module { name: name.to_owned(), object });
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
        let modules = with_dependencies(folder.path(), &["vfio_pci", "vfio"]).unwrap();
        let names: Vec<&str> = modules.iter().map(|m| m.name.as_str()).collect();
        assert_eq!(names, ["vfio", "vfio_pci_core", "vfio_pci"]);
    }

    #[test]
    fn a_module_that_is_nowhere_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = with_dependencies(folder.path(), &["ib-mthca"]).unwrap_err();
        assert!(error.to_string().contains("ib_mthca"), "{error}");
    }
}
