//! One C file of the whole library: `src/static.c` with everything that it includes, except the public headers.

use crate::tree::Tree;
use anyhow::{Context, Result};
use std::collections::BTreeSet;

/// The file that includes all others.
const ROOT: &str = "src/static.c";

/// Paths of the headers that a program includes, relative to `include/`.
pub fn public_headers(tree: &Tree) -> Vec<&str> {
    let headers = tree.files.keys().filter_map(|path| path.strip_prefix("include/"));
    headers.filter(|name| name.ends_with(".h") && (!name.contains('/') || *name == "mimalloc/profile.h")).collect()
}

pub fn amalgamate(tree: &Tree, title: &str) -> Result<String> {
    let mut amalgam = Amalgam { tree, public: public_headers(tree), done: BTreeSet::new(), text: String::new() };
    amalgam.text = format!(
        "/* {title}, in one file.\n   cc -O2 -DNDEBUG -I. -c mimalloc-prof.c */\n\n\
         #if !defined(MI_PPROF)\n#define MI_PPROF  1\n#endif\n"
    );
    amalgam.add(ROOT, false)?;
    Ok(amalgam.text)
}

struct Amalgam<'a> {
    tree: &'a Tree,
    public: Vec<&'a str>,
    /// Headers that stand in the text unconditionally.
    done: BTreeSet<String>,
    text: String,
}

impl Amalgam<'_> {
    /// A header that is included under a condition may be needed again: its own guard then drops the second copy.
    fn add(&mut self, path: &str, conditional: bool) -> Result<()> {
        let source = self.tree.text(path).with_context(|| format!("{path}: not in the tree"))?;
        self.text += &format!("\n/* ---- {path} ---- */\n");
        let guard = i32::from(has_include_guard(&source));
        let mut depth = 0;
        for line in source.lines() {
            let directive = line.trim_start().strip_prefix('#').map_or("", str::trim_start);
            depth += i32::from(directive.starts_with("if")) - i32::from(directive.starts_with("endif"));
            let included = included(directive).and_then(|name| self.resolve(path, name));
            match included {
                None if directive.starts_with("pragma once") => {}
                None => self.text += &format!("{line}\n"),
                Some(file) => self.include(&file, conditional || depth > guard)?,
            }
        }
        self.text += &format!("/* ---- end of {path} ---- */\n");
        Ok(())
    }

    fn include(&mut self, file: &str, conditional: bool) -> Result<()> {
        let public = self.public.iter().find(|name| file.strip_prefix("include/") == Some(**name));
        if let Some(name) = public {
            self.text += &format!("#include \"{name}\"\n");
            return Ok(());
        }
        if self.done.contains(file) {
            return Ok(());
        }
        if file.ends_with(".h") && !conditional {
            self.done.insert(file.to_string());
        }
        self.add(file, conditional)
    }

    /// As the compiler looks for it: beside the file that includes it, then in `include/`.
    fn resolve(&self, from: &str, name: &str) -> Option<String> {
        let beside = from.rsplit_once('/').map_or("", |(folder, _)| folder);
        let candidates = [beside, "include"].map(|folder| normalized(&format!("{folder}/{name}")));
        candidates.into_iter().find(|path| self.tree.files.contains_key(path))
    }
}

/// `include "x.h"  // why` → `x.h`
fn included(directive: &str) -> Option<&str> {
    let name = directive.strip_prefix("include")?.trim_start().strip_prefix('"')?;
    name.split('"').next()
}

fn has_include_guard(source: &str) -> bool {
    let mut directives = source.lines().filter_map(|line| line.trim_start().strip_prefix('#'));
    let first = directives.find(|directive| !directive.starts_with("pragma once"));
    first.is_some_and(|directive| directive.starts_with("ifndef") && directive.trim_end().ends_with("_H"))
}

/// Without `..`
fn normalized(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "" | "." => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_stand_once_unless_they_are_under_a_condition() {
        let mut tree = Tree::default();
        tree.insert("include/mimalloc.h", "int public_one;\n");
        tree.insert(
            "include/mimalloc/internal.h",
            "#pragma once\n#ifndef I_H\n#define I_H\n#include \"types.h\"\n#endif\n",
        );
        tree.insert("include/mimalloc/types.h", "#ifndef T_H\n#define T_H\nint types;\n#endif\n");
        tree.insert(
            "src/a.c",
            "#include \"mimalloc.h\"\n#include \"mimalloc/internal.h\"\n#include <stdio.h>\nint a;\n",
        );
        let root = "#if X\n#include \"mimalloc/types.h\"\n#endif\n#include \"a.c\"\n#include \"mimalloc/internal.h\"\n";
        tree.insert("src/static.c", root);
        let text = amalgamate(&tree, "all").unwrap();
        assert_eq!(text.matches("int types;").count(), 2, "{text}");
        assert_eq!(text.matches("#define I_H").count(), 1, "{text}");
        assert!(text.contains("#include \"mimalloc.h\"\n") && text.contains("#include <stdio.h>\n"), "{text}");
        assert!(!text.contains("public_one") && !text.contains("pragma once"), "{text}");
    }

    #[test]
    fn a_file_that_is_not_there_is_left_to_the_compiler() {
        let mut tree = Tree::default();
        tree.insert("src/static.c", "#include \"elsewhere.h\"\n");
        assert!(amalgamate(&tree, "all").unwrap().contains("#include \"elsewhere.h\"\n"));
        assert_eq!(normalized("include/mimalloc/../../src/./x.h"), "src/x.h");
    }
}
