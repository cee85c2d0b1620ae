//! Man pages and shell completions, generated from the command-line definition of a program.

use std::io;
use std::path::Path;

use clap::Command;
use clap_complete::Shell;

/// Shells for which completions are generated.
const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Fish, Shell::Zsh];

/// Writes the shell completions of a program to a directory, and a man page for the program and for each of
/// its commands.
///
/// # Errors
/// Fails if a file cannot be written.
pub fn write(program: Command, folder: &Path) -> io::Result<()> {
    let name = program.get_name().to_owned();
    for shell in SHELLS {
        clap_complete::generate_to(shell, &mut program.clone(), &name, folder)?;
    }
    // The `help` command would add a page for each command that it describes.
    clap_mangen::generate_to(program.disable_help_subcommand(true), folder)
}
