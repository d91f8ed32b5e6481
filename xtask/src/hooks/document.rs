//! `cargo xtask hooks`: docs/hooks.md, made of the list of hooks.

use super::{load, Hook, Place};
use crate::util;
use anyhow::{ensure, Context, Result};

#[derive(clap::Args)]
pub struct Args {
    /// Write nothing; fail if docs/hooks.md is not up to date
    #[arg(long)]
    check: bool,
}

const DOCUMENT: &str = "docs/hooks.md";

pub fn run(args: Args) -> Result<()> {
    let text = document(&load(&util::hooks_file())?)?;
    let path = util::repo_root().join(DOCUMENT);
    let fresh = std::fs::read(&path).is_ok_and(|bytes| bytes == text.as_bytes());
    ensure!(fresh || !args.check, "{DOCUMENT} is not up to date with xtask/hooks.toml; run cargo xtask hooks");
    if !fresh {
        util::write_atomic(&path, text.as_bytes(), false)?;
        println!("{DOCUMENT}: written");
    }
    Ok(())
}

/// Whether the document is as the list of hooks says.
pub fn check() -> Result<()> {
    run(Args { check: true })
}

fn document(hooks: &[Hook]) -> Result<String> {
    let mut text = format!(
        "# The hooks\n\n\
         Made by `cargo xtask hooks` from `xtask/hooks.toml`, where the inserted code is: change that.\n\n\
         {} insertions, {} lines of code in all, each between `#if MI_PPROF` and `#endif`, or two marker comments in files \
         of the build.\n`cargo xtask drift` shows where each of them lands in every mimalloc that is pinned.\n",
        hooks.len(),
        hooks.iter().map(|hook| hook.code.lines().count()).sum::<usize>(),
    );
    let mut files: Vec<&str> = Vec::new();
    for hook in hooks {
        if !files.contains(&hook.file.as_str()) {
            files.push(&hook.file);
        }
    }
    for file in files {
        text += &format!("\n## {file}\n");
        for hook in hooks.iter().filter(|hook| hook.file == file) {
            text += &section(hook).with_context(|| format!("hook '{}'", hook.name))?;
        }
    }
    Ok(text)
}

fn section(hook: &Hook) -> Result<String> {
    ensure!(!hook.cost.is_empty(), "does not say what it costs: cost = \"…\"");
    ensure!(!hook.here.is_empty(), "does not say why it cannot be elsewhere: here = \"…\"");
    let scope = hook.scope.as_ref().map_or(String::new(), |scope| format!(" in `{scope}`"));
    let place = match hook.place {
        Place::Before => "before",
        Place::After => "after",
        Place::Replace => "instead of",
    };
    let mut text = format!("\n**{}**{scope}, {place} `{}`\n\n", hook.name, hook.anchor.trim());
    text += &format!("- What for: {}.\n- Cost: {}.\n- Why here: {}.\n", hook.why, hook.cost, hook.here);
    for other in &hook.alt {
        text += &format!("- Otherwise in {}: {}.\n", other.versions, other.why);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::parse;

    const LIST: &str =
        "[[hook]]\nname = 'h'\nfile = 'a.c'\nscope = 'f'\nanchor = 'x'\nplace = 'after'\ncode = 'y();'\n\
                        why = 'for y'\ncost = 'a call'\nhere = 'x is done'\n";

    #[test]
    fn every_field_of_a_hook_is_in_the_document() {
        let text = document(&parse(LIST).unwrap()).unwrap();
        for part in ["## a.c", "**h** in `f`, after `x`", "for y", "a call", "x is done"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(text != document(&parse(&LIST.replace("a call", "two calls")).unwrap()).unwrap());
    }

    #[test]
    fn a_hook_that_does_not_say_its_cost_or_place_is_refused() {
        for missing in ["cost = 'a call'", "here = 'x is done'"] {
            let error = document(&parse(&LIST.replace(missing, "")).unwrap()).unwrap_err();
            assert!(format!("{error:#}").contains("hook 'h'"), "{error:#}");
        }
    }
}
