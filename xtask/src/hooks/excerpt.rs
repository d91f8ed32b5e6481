//! What a person needs to see who moves an anchor: the definition around it.

use super::{Hook, Pristine};
use crate::version::Version;
use crate::{scope, text};
use anyhow::Result;
use serde::Serialize;
use std::ops::Range;

/// The definition that a hook is about, as it stands in one version.
#[derive(Serialize)]
pub struct Excerpt {
    /// Its first line (from 1).
    pub first: usize,
    pub lines: Vec<String>,
    /// Lines that carry the anchor, counted from 0 within the excerpt.
    pub anchors: Vec<usize>,
}

impl Excerpt {
    /// The lines, those with the anchor pointed at.
    pub fn marked(&self) -> Vec<String> {
        let mark = |at: usize| if self.anchors.contains(&at) { "=> " } else { "   " };
        self.lines.iter().enumerate().map(|(at, line)| format!("{}{line}", mark(at))).collect()
    }
}

impl Hook {
    /// Where the hook belongs in a file: its scope, or what is most like it; a few lines about the anchor if it has none.
    pub fn excerpt(&self, version: Version, source: &str) -> Result<Option<Excerpt>> {
        let hook = self.resolve(version)?;
        let pristine = Pristine::of(&hook.file, source)?;
        let range = match &hook.scope {
            Some(scope) => scope_like(&pristine, scope, &hook.anchor)?,
            None => lines_about(&pristine, &hook.anchor),
        };
        Ok(range.map(|range| Excerpt {
            first: range.start + 1,
            anchors: pristine.containing(&hook.anchor, range.clone()).iter().map(|line| line - range.start).collect(),
            lines: pristine.lines[range].iter().map(|line| line.text.clone()).collect(),
        }))
    }
}

/// The definition of that name; else one that holds the anchor; else the one with the most similar name.
fn scope_like(pristine: &Pristine, scope: &str, anchor: &str) -> Result<Option<Range<usize>>> {
    let defined = |name: &str| -> Result<Option<Range<usize>>> {
        let ranges = scope::find(&pristine.text, name)?;
        Ok(ranges.first().zip(ranges.last()).map(|(first, last)| first.start..last.end))
    };
    if let Some(range) = defined(scope)? {
        return Ok(Some(range));
    }
    let mut best = (0.0, None);
    for (name, _) in scope::names(&pristine.text) {
        let Some(range) = defined(&name)? else { continue };
        let holds_anchor = !pristine.containing(anchor, range.clone()).is_empty();
        let score = text::similarity(scope, &name) + f64::from(u8::from(holds_anchor));
        if score > best.0 {
            best = (score, Some(range));
        }
    }
    Ok(best.1)
}

fn lines_about(pristine: &Pristine, anchor: &str) -> Option<Range<usize>> {
    let lines = 0..pristine.lines.len();
    let score = |line: &usize| text::similarity(anchor, pristine.lines[*line].text.trim());
    let exact = pristine.containing(anchor, lines.clone()).first().copied();
    let line = exact.or_else(|| lines.clone().max_by(|a, b| score(a).total_cmp(&score(b))))?;
    Some(line.saturating_sub(8)..(line + 9).min(lines.end))
}
