//! Man pages and shell completions, generated from a program's command-line definition.

use std::io;
use std::path::Path;

use clap::Command;
use clap_complete::Shell;

const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Fish, Shell::Zsh];

/// Writes shell completions and man pages to a directory. The program and each of its commands get a man page.
///
/// # Errors
/// Fails if a file cannot be written.
pub fn write(program: Command, folder: &Path) -> io::Result<()> {
    let name = program.get_name().to_owned();
    for shell in SHELLS {
        clap_complete::generate_to(shell, &mut program.clone(), &name, folder)?;
    }
    // Exclude the `help` command, which would otherwise add one more page for each command.
    clap_mangen::generate_to(program.disable_help_subcommand(true), folder)
}
