//! Directories and locks of running testbeds. Directories left behind by killed supervisors are removed.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::name::TestbedName;

/// Lock held while directories are created or removed.
const LOCK: &str = "lock";
/// Lock in a testbed's directory, held by the supervisor while it runs.
const ALIVE: &str = "alive";
const SOCKET: &str = "socket";

/// The parent of all testbed directories. Only its owner can write to it. The parent is `$HCAD_LAB_STATE` if set, or
/// else a subdirectory of `$XDG_RUNTIME_DIR` or of the temporary directory.
#[derive(Clone, Debug)]
pub(super) struct States(PathBuf);

impl States {
    /// Finds or creates the parent directory.
    ///
    /// # Errors
    /// Fails if the directory cannot be created, belongs to another user, or is writable by other users.
    pub(super) fn open() -> Result<Self> {
        let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let user = rustix::process::getuid().as_raw();
        let folder = var("HCAD_LAB_STATE")
            .or_else(|| Some(var("XDG_RUNTIME_DIR").filter(|folder| folder.is_dir())?.join("hcad-lab")))
            .unwrap_or_else(|| std::env::temp_dir().join(format!("hcad-lab-{user}")));
        Self::at(folder)
    }

    fn at(folder: PathBuf) -> Result<Self> {
        let name = folder.display();
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)
            .with_context(|| format!("cannot create {name}"))?;
        // Do not follow links, since in a directory shared by all users, another user may have created a link with this
        // name.
        let stat = fs::symlink_metadata(&folder).with_context(|| name.to_string())?;
        ensure!(stat.is_dir(), "{name} is not a directory; set HCAD_LAB_STATE to a directory");
        ensure!(
            stat.uid() == rustix::process::getuid().as_raw() && stat.mode() & 0o022 == 0,
            "{name} belongs to another user or is writable by other users; set HCAD_LAB_STATE to a directory that only you can write to"
        );
        Ok(Self(folder))
    }

    pub(super) fn folder(&self) -> &Path {
        &self.0
    }

    /// Creates the directory of a new testbed.
    ///
    /// # Errors
    /// Fails if a testbed named `name` already exists.
    pub(super) fn claim(&self, name: &TestbedName) -> Result<State> {
        let _lock = self.lock()?;
        let folder = self.0.join(name.as_str());
        if folder.exists() {
            ensure!(
                remove_if_dead(&folder)?,
                "testbed {name} is already running; stop it with 'guest-lab down {name}', or choose a different --name"
            );
        }
        DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        let alive = File::create(folder.join(ALIVE))
            .with_context(|| format!("cannot create the lock file for testbed {name}"))?;
        alive.try_lock().with_context(|| format!("cannot lock testbed {name}"))?;
        Ok(State { states: self.clone(), folder, _alive: alive })
    }

    /// Returns the sorted names of all running testbeds. Removes the directories of testbeds that are no longer
    /// running.
    ///
    /// # Errors
    /// Fails if directories cannot be read or removed.
    pub(super) fn running(&self) -> Result<Vec<TestbedName>> {
        let _lock = self.lock()?;
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.0).with_context(|| self.0.display().to_string())? {
            let entry = entry?;
            // Ignore files whose names are not testbed names.
            let Some(Ok(name)) = entry.file_name().to_str().map(str::parse) else { continue };
            if entry.file_type()?.is_dir() && !remove_if_dead(&entry.path())? {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    /// Returns the path of a testbed's socket.
    ///
    /// # Errors
    /// Fails if the testbed does not exist.
    pub(super) fn socket(&self, name: &TestbedName) -> Result<PathBuf> {
        let running = self.running()?;
        if !running.contains(name) {
            let names: Vec<&str> = running.iter().map(TestbedName::as_str).collect();
            let others = if names.is_empty() {
                "no testbed is running".into()
            } else {
                format!("running: {}", names.join(", "))
            };
            bail!("testbed {name} does not exist; {others}");
        }
        Ok(self.0.join(name.as_str()).join(SOCKET))
    }

    fn lock(&self) -> Result<File> {
        let path = self.0.join(LOCK);
        let lock = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        lock.lock().with_context(|| format!("cannot lock {}", path.display()))?;
        Ok(lock)
    }
}

/// The directory of a running testbed, which is removed on drop.
#[derive(Debug)]
pub(super) struct State {
    states: States,
    folder: PathBuf,
    _alive: File,
}

impl State {
    /// Returns the path of the socket that commands connect to.
    pub(super) fn socket(&self) -> PathBuf {
        self.folder.join(SOCKET)
    }

    /// Returns the directory, which is removed together with the files in it.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let _lock = self.states.lock();
        // If the removal fails, the next command that finds the directory removes it.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Removes a testbed's directory unless the testbed is running. Returns whether it was removed.
fn remove_if_dead(folder: &Path) -> Result<bool> {
    match File::open(folder.join(ALIVE)).map(|alive| alive.try_lock()) {
        Ok(Err(TryLockError::WouldBlock)) => return Ok(false),
        Ok(Err(TryLockError::Error(error))) => {
            return Err(error).with_context(|| format!("cannot lock {}", folder.display()));
        }
        // No supervisor is running: the lock is free, or the supervisor was killed before it created the lock file.
        Ok(Ok(())) | Err(_) => {}
    }
    fs::remove_dir_all(folder).with_context(|| {
        format!("cannot remove {}, which a stopped testbed left behind", folder.display())
    })?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> TestbedName {
        text.parse().unwrap()
    }

    #[test]
    fn name_is_reserved_while_testbed_runs() {
        let root = tempfile::tempdir().unwrap();
        let states = States::at(root.path().join("state")).unwrap();
        let state = states.claim(&name("ci")).unwrap();
        let refused = format!("{:#}", states.claim(&name("ci")).unwrap_err());
        assert!(refused.contains("testbed ci is already running"), "{refused}");
        assert_eq!(states.running().unwrap(), [name("ci")]);
        assert_eq!(states.socket(&name("ci")).unwrap(), state.socket());
        let refused = format!("{:#}", states.socket(&name("other")).unwrap_err());
        assert_eq!(refused, "testbed other does not exist; running: ci");
        drop(state);
        assert_eq!(states.running().unwrap(), []);
        assert!(!root.path().join("state/ci").exists());
    }

    #[test]
    fn directory_of_killed_supervisor_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let states = States::at(root.path().to_owned()).unwrap();
        for left in ["listed", "claimed"] {
            fs::create_dir(root.path().join(left)).unwrap();
            fs::write(root.path().join(left).join(ALIVE), "").unwrap();
            fs::write(root.path().join(left).join("guest-a.agent"), "").unwrap();
        }
        let state = states.claim(&name("claimed")).unwrap();
        assert!(!state.folder().join("guest-a.agent").exists());
        assert_eq!(states.running().unwrap(), [name("claimed")]);
        assert!(!root.path().join("listed").exists());
    }

    #[test]
    fn rejects_directory_writable_by_others() {
        let root = tempfile::tempdir().unwrap();
        let open = root.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        assert!(States::at(open.clone()).is_err());
        fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let link = root.path().join("link");
        std::os::unix::fs::symlink(&open, &link).unwrap();
        let error = States::at(link).unwrap_err();
        assert!(error.to_string().contains("is not a directory"), "{error:#}");
    }
}
