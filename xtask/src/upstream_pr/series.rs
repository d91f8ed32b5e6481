//! The patches: what each brings and why, as trees in memory.

use crate::hooks::{self, Hook, Part};
use crate::tree::Tree;
use crate::upstream::Upstream;
use crate::{checkout, materialize, ours, util};
use anyhow::{ensure, Context, Result};

pub struct Series {
    pub base: Tree,
    pub patches: Vec<Patch>,
}

pub struct Patch {
    pub subject: &'static str,
    pub body: &'static str,
    /// Upstream as of this patch.
    pub tree: Tree,
}

struct Message {
    part: Part,
    subject: &'static str,
    body: &'static str,
}

const MESSAGES: [Message; 4] = [
    Message {
        part: Part::Options,
        subject: "add the build option MI_PPROF and the options of a heap profiler",
        body: "A sampling heap profiler follows. This is what a user sees of it first: the
CMake option, and the runtime options. These stand after all others, so that
no number of an existing option changes. Nothing reads them yet.",
    },
    Message {
        part: Part::Engine,
        subject: "add the engine of a sampling heap profiler",
        body: "Which call stacks hold the memory? An answer that can be had in production
needs sampling by an allocator that knows its pages.

The engine is in files of its own and gets its memory from the OS layer only,
never from a heap. What it must remember about a page is in bits and in a word
that were not used, so `mi_page_t` does not grow: `retire_expire` needs five of
its seven bits, and the list of a page's samples takes the place of padding.
Nothing calls the engine yet.",
    },
    Message {
        part: Part::Hooks,
        subject: "call the heap profiler from the slow paths",
        body: "A free list is cut before the block that is to be sampled. The fast path runs
dry exactly there and takes the generic path as it always does, so it has the
same instructions as before. Frees find a sample by the flag byte that
`mi_free` tests anyway.

The calls are in the generic path, in the slow path of free, and where blocks
are resized in place, destroyed or taken over without an allocation or a free.",
    },
    Message {
        part: Part::Tests,
        subject: "test the heap profiler",
        body: "The estimates against what was allocated, every door through which a block
comes and goes, threads, fork, memory that runs out, and both output formats.
One program each, as the profiler has one state per process.",
    },
];

const DOCUMENTATION: (&str, &str) = (
    "document the heap profiler",
    "How it is started and read, its functions and its options, where a reader
looks for the other tools.",
);

impl Series {
    pub fn of(upstream: &Upstream) -> Result<Series> {
        let base = upstream.tree()?;
        let clean = base == materialize::pristine(upstream)?;
        ensure!(clean, "{}: has the profiler already; name a clean checkout", upstream.label());
        let hooks = hooks::load(&util::hooks_file())?;
        if let Upstream::Checkout(folder) = upstream {
            checkout::ensure_usable(folder, &base, &hooks)?;
        }
        let mut patches = Vec::new();
        for message in MESSAGES {
            let tree = tree_of(&base, &hooks, message.part).with_context(|| upstream.label())?;
            patches.push(Patch { subject: message.subject, body: message.body, tree });
        }
        let tree = documented(&patches[MESSAGES.len() - 1].tree, &hooks)?;
        patches.push(Patch { subject: DOCUMENTATION.0, body: DOCUMENTATION.1, tree });
        Ok(Series { base, patches })
    }
}

/// The base with all hooks and files up to a part. There are no marker comments: nothing is to be dropped again.
fn tree_of(base: &Tree, hooks: &[Hook], part: Part) -> Result<Tree> {
    let mut tree = base.clone();
    let hooks: Vec<Hook> = hooks.iter().filter(|hook| hook.part <= part).map(Hook::without_markers).collect();
    apply(&hooks, &mut tree)?;
    for (path, file) in ours::files()? {
        if part_of(&path) <= part {
            ensure!(!base.files.contains_key(&path), "upstream has a file of its own at {path}");
            tree.files.insert(path, file);
        }
    }
    Ok(tree)
}

/// The patch that brings a file of ours.
fn part_of(path: &str) -> Part {
    match path.split('/').next() {
        Some("include" | "src") => Part::Engine,
        _ => Part::Tests,
    }
}

fn apply(hooks: &[Hook], tree: &mut Tree) -> Result<()> {
    let applied = hooks::apply(hooks, tree.version()?, |file| tree.text(file))?;
    applied.ensure_complete("the series")?;
    applied.files.iter().for_each(|(file, text)| tree.insert(file, text.as_bytes()));
    Ok(())
}

fn documented(tree: &Tree, hooks: &[Hook]) -> Result<Tree> {
    let mut entries = hooks::load(&util::repo_root().join("xtask/upstream-pr/documentation.toml"))?;
    entries.retain(|entry| tree.files.contains_key(&entry.file));
    ensure!(!entries.is_empty(), "upstream has no documentation to add to");
    let header = tree.text("include/mimalloc/profile.h").context("there is no profile.h")?;
    for entry in &mut entries {
        entry.code = entry.code.replace("@functions@", &functions(&header)).replace("@options@", &options(hooks)?);
    }
    let mut tree = tree.clone();
    apply(&entries, &mut tree)?;
    Ok(tree)
}

/// The functions of a header, each with its comment, as Doxygen wants them.
fn functions(header: &str) -> String {
    let mut found = Vec::new();
    let mut comment = String::new();
    for line in header.lines() {
        if let Some(text) = line.strip_prefix("//") {
            comment += &format!("///{text}\n");
            continue;
        }
        if let Some(function) = line.strip_prefix("mi_decl_export ").filter(|_| !comment.is_empty()) {
            found.push(format!("{comment}{}", function.replace(" mi_attr_noexcept", "")));
        }
        comment.clear();
    }
    found.join("\n\n")
}

fn options(hooks: &[Hook]) -> Result<String> {
    let hook = hooks.iter().find(|hook| hook.name == "options").context("there is no hook 'options'")?;
    Ok(hook.code.replace("// ", "///< "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::PRIMARY;

    #[test]
    fn the_last_tree_is_the_materialized_one_but_for_markers_and_documentation() {
        let upstream = Upstream::Pinned(PRIMARY);
        let (series, whole) = (Series::of(&upstream).unwrap(), materialize::compose(&upstream).unwrap());
        let last = &series.patches[MESSAGES.len() - 1].tree;
        for (path, file) in &last.files {
            let marked = path == "CMakeLists.txt" || path.ends_with(".pc.in");
            assert!(marked || whole.files.get(path) == Some(file), "{path}");
        }
    }

    #[test]
    fn comments_of_functions_become_documentation() {
        let header = "// about nothing\n\n// Start.\n// 0: default.\nmi_decl_export bool f(int x) mi_attr_noexcept;\n";
        assert_eq!(functions(header), "/// Start.\n/// 0: default.\nbool f(int x);");
    }
}
