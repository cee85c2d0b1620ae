//! Man pages and completions, from the definition of a program's command line.

use std::io;
use std::path::Path;

use clap::Command;
use clap_complete::Shell;

/// Shells that have completions.
const SHELLS: [Shell; 3] = [Shell::Bash, Shell::Fish, Shell::Zsh];

/// Writes the man page of a program, and one of each of its commands, and its completions into a folder.
///
/// # Errors
/// A file cannot be written.
pub fn write(program: Command, folder: &Path) -> io::Result<()> {
    let name = program.get_name().to_owned();
    for shell in SHELLS {
        clap_complete::generate_to(shell, &mut program.clone(), &name, folder)?;
    }
    // Its `help` command would have a page for each of the others.
    clap_mangen::generate_to(program.disable_help_subcommand(true), folder)
}
