//! `reload` loads or replaces a kernel module in running guests.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result};
use serde::Serialize;

use super::{describe, messages, print_json, session};
use crate::modules;
use crate::report::line;
use crate::testbed::boot::NETWORK_SCRIPT;
use crate::testbed::name::{GuestName, Target, Targets};
use crate::testbed::protocol::Description;

/// Unloads the old module and the modules that use it. Then loads the new module's dependencies, the new module itself,
/// and the other modules that were unloaded. Finally, sets up the RDMA device's network interface. The arguments are
/// the path of the network script, the module's name, file and parameters, and its dependencies.
const SCRIPT: &str = r#"
network=$1 name=$2 file=$3 parameters=$4; shift 4
cat > "$file" || exit
out=
remove() {
    [ -d "/sys/module/$1" ] || return 0
    for user in $(ls "/sys/module/$1/holders" 2>/dev/null); do remove "$user" || return; done
    rmmod "$1" && out="$1 $out"
}
remove "$name" || exit
[ $# = 0 ] || modprobe -a "$@" || exit
insmod "$file" $parameters || exit
for user in $out; do [ "$user" = "$name" ] || modprobe "$user" || exit; done
[ ! -e "$network" ] || sh "$network" 2>/dev/null || true
"#;

/// Arguments of [`super::Command::Reload`].
#[derive(Clone, Debug, clap::Args)]
pub struct Reload {
    /// Testbed (NAME) or single guest (NAME:GUEST) in which to load the module
    #[arg(value_name = "NAME[:GUEST]")]
    target: Targets,
    /// Path to the module (.ko) on the host
    #[arg(long, value_name = "FILE")]
    module: PathBuf,
    /// Module parameter, in the form that insmod accepts (repeatable)
    #[arg(long, value_name = "NAME=VALUE")]
    parameter: Vec<String>,
    /// Print the results, including each guest's kernel messages, as a JSON array
    #[arg(long)]
    json: bool,
}

/// The object that `reload --json` prints for each guest.
#[derive(Clone, Debug, Serialize)]
struct Reloaded {
    guest: GuestName,
    module: String,
    /// Time from sending the module to the end of its initialisation.
    seconds: f64,
    /// Kernel messages that the guest logged during the reload.
    messages: Vec<String>,
}

impl Reload {
    /// Loads the module into one guest after another and prints the guests' kernel messages.
    ///
    /// # Errors
    /// Fails if the module was built for a different kernel, or a guest rejects it.
    pub(super) async fn run(self) -> Result<()> {
        let testbed = &self.target.testbed;
        let Description { modules: kernel, guests, .. } = describe(testbed).await?;
        modules::ModuleList::new(&kernel)?.check_file(&self.module)?;
        let name = modules::name_of(&self.module)?;
        let (object, needs) = modules::open(&self.module)?;
        let mut all = Vec::new();
        let wanted = |guest: &GuestName| self.target.guest.is_none_or(|one| one == *guest);
        for guest in guests.iter().map(|guest| guest.name).filter(wanted) {
            let begun = Instant::now();
            let target = Target { testbed: testbed.clone(), guest };
            let before = messages(testbed, guest).await?.len();
            let (file, parameters) = (format!("/run/{name}.ko"), self.parameter.join(" "));
            let mut argv = vec!["sh", "-c", SCRIPT, "reload", NETWORK_SCRIPT, &name, &file, &parameters];
            argv.extend(needs.iter().map(String::as_str));
            let loaded = session::run_well(&target, &argv, object.clone()).await;
            let after = messages(testbed, guest).await?;
            let messages: Vec<String> = after.into_iter().skip(before).collect();
            if !self.json {
                messages.iter().try_for_each(|message| line(&format!("{guest}: {message}")))?;
            }
            loaded.with_context(|| format!("cannot replace module {name} in guest {guest}"))?;
            let seconds = begun.elapsed().as_secs_f64();
            if !self.json {
                line(&format!("{guest}: {name} loaded in {seconds:.1} s"))?;
            }
            all.push(Reloaded { guest, module: name.clone(), seconds, messages });
        }
        if self.json { print_json(&all) } else { Ok(()) }
    }
}
