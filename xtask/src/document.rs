//! Tries the commands of a document, as its reader would, and compares what they print with what the document shows.

use crate::cmake;
use crate::util;
use anyhow::{ensure, Context, Result};
use std::path::Path;
use xshell::{cmd, Shell};

/// A command, and the lines that the document shows below it.
#[derive(Debug, Default, PartialEq)]
struct Step {
    command: String,
    shown: Vec<String>,
}

/// Runs all commands of `text` in one shell, in a new folder that has the examples. Where the document says `installed`,
/// there is `library`. Returns what each of them printed.
pub fn run(shell: &Shell, text: &str, folder: &Path, installed: &str, library: &Path) -> Result<Vec<String>> {
    let (steps, examples) = (steps(text), util::repo_root().join("examples"));
    ensure!(text.contains(installed), "it does not say {installed}");
    shell.remove_path(folder)?;
    shell.create_dir(folder)?;
    cmake::run(cmd!(shell, "cp -r {examples} {folder}"))?;
    let _folder = shell.push_dir(folder);
    let script = script(&steps).replace(installed, &library.display().to_string());
    let output = cmake::run(cmd!(shell, "sh -e -c {script}"))?;
    Ok(output.split(MARK).skip(1).map(str::to_string).collect())
}

/// Returns how many commands and lines are right.
pub fn compare(text: &str, printed: &[String]) -> Result<usize> {
    let steps = steps(text);
    ensure!(!steps.is_empty(), "there are no commands in it");
    ensure!(printed.len() == steps.len(), "only {} of {} commands ran", printed.len(), steps.len());
    for (step, printed) in steps.iter().zip(printed) {
        step.compare(printed).with_context(|| step.command.clone())?;
    }
    Ok(steps.iter().map(|step| 1 + step.shown.len()).sum())
}

/// Printed before what a command prints.
const MARK: &str = "@@@@\n";

fn script(steps: &[Step]) -> String {
    steps.iter().map(|step| format!("echo {MARK}{}\n", step.command)).collect()
}

/// In blocks that are indented, commands begin with `$` and go on after a backslash.
fn steps(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("    ")) {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (Some(command), _) => steps.push(Step { command: command.to_string(), shown: Vec::new() }),
            (None, Some(step)) if step.command.ends_with('\\') => step.command += &format!("\n{line}"),
            (None, Some(step)) if line.trim() != "…" => step.shown.push(line.to_string()),
            _ => {}
        }
    }
    steps
}

impl Step {
    /// Each line shown is printed, in this order, but for what was measured.
    fn compare(&self, printed: &str) -> Result<()> {
        let mut lines = printed.lines();
        for shown in &self.shown {
            ensure!(lines.any(|line| words(line).eq(words(shown))), "'{shown}' is not printed:\n{printed}");
        }
        Ok(())
    }
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split_whitespace().filter(|word| !is_measured(word))
}

/// A number, perhaps with a unit.
fn is_measured(word: &str) -> bool {
    let number = word.trim_end_matches(['%', ',']).trim_end_matches(['B', 'k', 'M', 'G', 'm', 's']);
    number.parse::<f64>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Title\n\nRun $ this:\n\n    $ A=1 \\\n      run &\n    $ top x\n    …\n       4.5MB 10.5%, 3.5s  leak\n    53:  p = q;\n";

    #[test]
    fn commands_and_what_they_print_are_found() {
        let step = |command: &str, shown: &[&str]| Step {
            command: command.to_string(),
            shown: shown.iter().map(|line| line.to_string()).collect(),
        };
        assert_eq!(
            steps(TEXT),
            [step("A=1 \\\n  run &", &[]), step("top x", &["   4.5MB 10.5%, 3.5s  leak", "53:  p = q;"])]
        );
    }

    #[test]
    fn measured_values_may_differ_and_nothing_else() {
        let top = &steps(TEXT)[1];
        top.compare("Time: x\n  12kB -3%, 9ms leak\n 0B other\n53: p = q;\n").unwrap();
        assert!(top.compare("12kB 3% 9s leek\n53: p = q;\n").is_err());
        assert!(top.compare("12kB 3% 9s leak\n54: p = q;\n").is_err());
        assert!(top.compare("53: p = q;\n12kB 3% 9s leak\n").is_err(), "in another order");
    }
}
