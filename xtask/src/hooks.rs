//! The hook engine: anchored insertions into upstream files.
//!
//! An anchor is looked up in the pristine text (regions of an earlier run are dropped first), inside its scope,
//! and must be found exactly once. All hooks apply or none does.

pub mod document;
pub mod excerpt;

use crate::region::{self, Region, Syntax};
use crate::scope;
use crate::text::{self, Eol, Line};
use crate::version::{Version, Versions};
use anyhow::{bail, ensure, Context, Result};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hook {
    pub name: String,
    pub file: String,
    /// A function, an initialised variable, or a type (`struct mi_page_s`); the whole file when absent.
    pub scope: Option<String>,
    /// Text within exactly one line of the scope.
    pub anchor: String,
    pub place: Place,
    /// How many lines, from the anchor's, are meant.
    #[serde(default = "one")]
    lines: usize,
    /// The anchor stands `of` times; this is the `nth` of them.
    #[serde(default = "one")]
    nth: usize,
    #[serde(default = "one")]
    of: usize,
    #[serde(default)]
    pub code: String,
    /// The preprocessor condition; `false` inserts without a region (for files that are made on the fly).
    #[serde(default)]
    guard: Guard,
    /// One line on what it is for.
    pub why: String,
    /// What it costs at run time.
    #[serde(default)]
    pub cost: String,
    /// Why it cannot be elsewhere.
    #[serde(default)]
    pub here: String,
    #[serde(default)]
    pub part: Part,
    /// Where the hook applies at all; everywhere when absent.
    versions: Option<Versions>,
    /// What differs in a range of versions.
    #[serde(default)]
    pub alt: Vec<Alternative>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alternative {
    pub versions: Versions,
    /// What is different there.
    pub why: String,
    scope: Option<String>,
    anchor: Option<String>,
    lines: Option<usize>,
    nth: Option<usize>,
    of: Option<usize>,
    code: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    Before,
    After,
    Replace,
}

/// The patch of an upstream series that brings the hook.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, PartialOrd)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    Options,
    Engine,
    #[default]
    Hooks,
    Tests,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Guard {
    None(bool),
    Condition(String),
}

fn one() -> usize {
    1
}

impl Default for Guard {
    fn default() -> Guard {
        Guard::Condition(region::GUARD.into())
    }
}

/// What became of one hook.
pub struct Outcome {
    pub hook: String,
    pub file: String,
    pub state: State,
    /// How many lines it adds to upstream's.
    pub lines: usize,
}

pub enum State {
    /// Inserted at this line (from 1).
    Applied(usize),
    /// Stood there before, at this line.
    Present(usize),
    Drifted(Drift),
}

/// An anchor that is not there exactly as often as the hook says.
#[derive(Debug)]
pub struct Drift {
    problem: String,
    candidates: Vec<String>,
}

/// Every hooked file with its new text, and what became of each hook.
pub struct Applied {
    pub files: BTreeMap<String, String>,
    pub outcomes: Vec<Outcome>,
}

impl Applied {
    pub fn drifts(&self) -> Vec<&Outcome> {
        self.outcomes.iter().filter(|outcome| matches!(outcome.state, State::Drifted(_))).collect()
    }

    /// An error that tells every drift.
    pub fn ensure_complete(&self, target: &str) -> Result<()> {
        let drifts = self.drifts();
        if drifts.is_empty() {
            return Ok(());
        }
        let all: String = drifts.iter().map(|drift| format!("\n{drift}")).collect();
        bail!("{target}: {} of {} hooks do not fit; nothing was written{all}", drifts.len(), self.outcomes.len())
    }
}

pub fn load(path: &Path) -> Result<Vec<Hook>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{}: cannot be read", path.display()))?;
    parse(&text).with_context(|| format!("{}: not a valid list of hooks", path.display()))
}

pub fn parse(toml: &str) -> Result<Vec<Hook>> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct List {
        #[serde(default)]
        hook: Vec<Hook>,
    }
    let hooks = toml::from_str::<List>(toml)?.hook;
    for (at, hook) in hooks.iter().enumerate() {
        hook.validate().with_context(|| format!("hook '{}'", hook.name))?;
        ensure!(hooks[..at].iter().all(|other| other.name != hook.name), "hook '{}' stands twice", hook.name);
    }
    Ok(hooks)
}

/// Applies `hooks` to the files that `read` gives, which may carry the regions of an earlier run.
pub fn apply(hooks: &[Hook], version: Version, read: impl Fn(&str) -> Option<String>) -> Result<Applied> {
    ensure!(version.0 == 2, "mimalloc {version} is of another line: the hooks are for versions 2.x");
    let mut by_file: BTreeMap<&str, Vec<Hook>> = BTreeMap::new();
    for hook in hooks {
        if hook.applies_to(version)? {
            let resolved = hook.resolve(version).with_context(|| format!("hook '{}'", hook.name))?;
            by_file.entry(&hook.file).or_default().push(resolved);
        }
    }
    let mut applied = Applied { files: BTreeMap::new(), outcomes: Vec::new() };
    for (file, hooks) in by_file {
        let source = read(file);
        let (text, outcomes) = apply_to_file(file, source.as_deref(), &hooks).with_context(|| file.to_string())?;
        applied.files.extend(text.map(|text| (file.to_string(), text)));
        applied.outcomes.extend(outcomes);
    }
    let order = |name: &str| hooks.iter().position(|hook| hook.name == name);
    applied.outcomes.sort_by_key(|outcome| order(&outcome.hook));
    Ok(applied)
}

/// The hooked text, unless a hook drifted.
fn apply_to_file(file: &str, source: Option<&str>, hooks: &[Hook]) -> Result<(Option<String>, Vec<Outcome>)> {
    let outcome = |hook: &Hook, state| Outcome { hook: hook.name.clone(), file: file.to_string(), state, lines: 0 };
    let Some(source) = source else {
        let missing = || State::Drifted(Drift { problem: "there is no such file".into(), candidates: Vec::new() });
        return Ok((None, hooks.iter().map(|hook| outcome(hook, missing())).collect()));
    };
    let pristine = Pristine::of(file, source)?;
    let mut edits = Vec::new();
    let mut drifts = Vec::new();
    for hook in hooks {
        match hook.edit(&pristine).with_context(|| format!("hook '{}'", hook.name))? {
            Ok(edit) => edits.push(edit),
            Err(drift) => drifts.push(outcome(hook, State::Drifted(drift))),
        }
    }
    ensure_no_overlap(&edits)?;
    let (lines, numbers) = insert(&pristine.lines, &edits);
    let complete = drifts.is_empty();
    let placed = edits.iter().zip(numbers).map(|(edit, number)| {
        let state = if pristine.has_region(edit) { State::Present(number) } else { State::Applied(number) };
        Outcome { lines: edit.block.len() - edit.kept(), ..outcome(edit.hook, state) }
    });
    let outcomes = placed.chain(drifts).collect();
    Ok((complete.then(|| text::join(&lines)), outcomes))
}

/// A file without its regions, and what those regions were.
struct Pristine {
    file: String,
    syntax: Option<Syntax>,
    text: String,
    lines: Vec<Line>,
    /// The number of each line in the file as it stands.
    numbers: Vec<usize>,
    regions: Vec<Region>,
}

impl Pristine {
    fn of(file: &str, source: &str) -> Result<Pristine> {
        let syntax = Syntax::of(file);
        let (lines, numbers, regions) = match syntax {
            Some(syntax) => {
                let dropped = region::drop_regions(source, syntax)?;
                (dropped.lines, dropped.numbers, dropped.regions)
            }
            None => {
                let lines = text::split(source);
                let numbers = (1..=lines.len()).collect();
                (lines, numbers, Vec::new())
            }
        };
        Ok(Pristine { file: file.to_string(), syntax, text: text::join(&lines), lines, numbers, regions })
    }

    fn has_region(&self, edit: &Edit) -> bool {
        self.regions.contains(&Region { position: edit.start(), lines: edit.texts() })
    }

    fn show(&self, line: usize) -> String {
        format!("{}:{}: {}", self.file, self.numbers[line], self.lines[line].text.trim())
    }

    fn containing(&self, anchor: &str, within: impl Iterator<Item = usize>) -> Vec<usize> {
        within.filter(|line| self.lines[*line].text.contains(anchor)).collect()
    }

    fn nearest(&self, anchor: &str, within: impl Iterator<Item = usize>) -> Vec<String> {
        let scored = within.map(|line| (text::similarity(anchor, self.lines[line].text.trim()), line));
        let mut scored: Vec<_> = scored.filter(|(score, _)| *score > 0.3).collect();
        scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        scored.iter().take(3).map(|(_, line)| self.show(*line)).collect()
    }
}

/// One hook, resolved against a file.
struct Edit<'a> {
    hook: &'a Hook,
    /// The anchor's line.
    line: usize,
    block: Vec<Line>,
}

impl Edit<'_> {
    fn texts(&self) -> Vec<String> {
        self.block.iter().map(|line| line.text.clone()).collect()
    }

    /// The pristine line before which the block stands.
    fn start(&self) -> usize {
        if self.hook.place == Place::After {
            self.line + self.hook.lines
        } else {
            self.line
        }
    }

    /// How many of its lines are upstream's.
    fn kept(&self) -> usize {
        if self.hook.place == Place::Replace {
            self.hook.lines.min(self.block.len())
        } else {
            0
        }
    }

    fn is_at(&self, place: Place, line: usize) -> bool {
        self.hook.place == place && self.start() == line
    }

    /// Whether `other` would stand amid the lines that this one replaces.
    fn swallows(&self, other: &Edit) -> bool {
        let end = self.line + self.hook.lines;
        let replaced = if other.hook.place == Place::Replace { self.line..end } else { self.line + 1..end };
        self.hook.place == Place::Replace && replaced.contains(&other.start())
    }
}

impl Hook {
    /// For an upstream that is to keep the change: in CMake's files the code stands without marker comments.
    pub fn without_markers(&self) -> Hook {
        let is_marked = Syntax::of(&self.file) == Some(Syntax::Marker);
        Hook { guard: if is_marked { Guard::None(false) } else { self.guard.clone() }, ..self.clone() }
    }

    fn validate(&self) -> Result<()> {
        ensure!(!self.anchor.trim().is_empty(), "has an empty anchor");
        ensure!(!self.why.trim().is_empty(), "does not say why");
        ensure!((1..=self.of).contains(&self.nth), "nth = {} is not within of = {}", self.nth, self.of);
        ensure!(self.lines > 0, "is about no line");
        match &self.guard {
            Guard::None(guarded) => ensure!(!guarded, "guard is a condition or false"),
            Guard::Condition(text) => {
                ensure!(
                    region::is_off_without_guard(text),
                    "its guard '{text}' is not off when {} is 0",
                    region::GUARD
                );
                ensure!(Syntax::of(&self.file).is_some(), "{}: no way to guard code in such a file", self.file);
            }
        }
        ensure!(self.place == Place::Replace || !self.code.trim().is_empty(), "inserts no code");
        Ok(())
    }

    pub fn applies_to(&self, version: Version) -> Result<bool> {
        let applies = self.versions.as_ref().map_or(Ok(true), |versions| versions.contain(version));
        applies.with_context(|| format!("hook '{}'", self.name))
    }

    /// The hook as it is meant for a version.
    fn resolve(&self, version: Version) -> Result<Hook> {
        let mut resolved = self.clone();
        for alternative in &self.alt {
            if alternative.versions.contain(version)? {
                let other = alternative.clone();
                resolved.scope = other.scope.or(resolved.scope);
                resolved.anchor = other.anchor.unwrap_or(resolved.anchor);
                resolved.lines = other.lines.unwrap_or(resolved.lines);
                resolved.nth = other.nth.unwrap_or(resolved.nth);
                resolved.of = other.of.unwrap_or(resolved.of);
                resolved.code = other.code.unwrap_or(resolved.code);
                break;
            }
        }
        resolved.validate()?;
        Ok(resolved)
    }

    fn edit<'a>(&'a self, pristine: &Pristine) -> Result<Result<Edit<'a>, Drift>> {
        let line = match self.find(pristine)? {
            Ok(line) => line,
            Err(drift) => return Ok(Err(drift)),
        };
        ensure!(line + self.lines <= pristine.lines.len(), "the file ends within its {} lines", self.lines);
        let block = self.block(pristine, &pristine.lines[line..line + self.lines]);
        Ok(Ok(Edit { hook: self, line, block }))
    }

    fn block(&self, pristine: &Pristine, anchored: &[Line]) -> Vec<Line> {
        let eol = text::default_eol(&pristine.lines);
        let indent = indent_at(self.place, anchored);
        let code = indented(&self.code, &indent, eol);
        let replaced = if self.place == Place::Replace { anchored } else { &[] };
        match (&self.guard, pristine.syntax) {
            (Guard::Condition(guard), Some(syntax)) => region::render(syntax, guard, &indent, code, replaced, eol),
            _ => code,
        }
    }

    /// The line of the anchor.
    fn find(&self, pristine: &Pristine) -> Result<Result<usize, Drift>> {
        let whole_file = 0..pristine.lines.len();
        let ranges = self.scope.as_ref().map_or(Ok(vec![whole_file]), |scope| scope::find(&pristine.text, scope))?;
        if ranges.is_empty() {
            return Ok(Err(self.scope_drift(pristine)));
        }
        let within = || ranges.iter().cloned().flatten();
        let found = pristine.containing(&self.anchor, within());
        if found.len() == self.of {
            return Ok(Ok(found[self.nth - 1]));
        }
        let place = self.scope.as_ref().map_or(String::new(), |scope| format!(" in '{scope}'"));
        let counts = format!("expected {}, found {}", times(self.of), times(found.len()));
        let problem = format!("looked for '{}'{place}: {counts}", self.anchor);
        let candidates = match found.is_empty() {
            true => pristine.nearest(&self.anchor, within()),
            false => found.iter().map(|line| pristine.show(*line)).collect(),
        };
        Ok(Err(Drift { problem, candidates }))
    }

    fn scope_drift(&self, pristine: &Pristine) -> Drift {
        let scope = self.scope.as_deref().unwrap_or_default();
        let names = scope::names(&pristine.text).into_iter();
        let mut similar: Vec<_> = names.map(|(name, line)| (text::similarity(scope, &name), line)).collect();
        similar.retain(|(score, _)| *score > 0.5);
        similar.sort_by(|a, b| b.0.total_cmp(&a.0));
        let similar = similar.iter().take(2).map(|(_, line)| *line);
        let elsewhere = pristine.containing(&self.anchor, 0..pristine.lines.len());
        let candidates = similar.chain(elsewhere.into_iter().take(3)).map(|line| pristine.show(line)).collect();
        Drift { problem: format!("looked for '{}' in '{scope}': no such definition", self.anchor), candidates }
    }
}

fn times(count: usize) -> String {
    match count {
        0 => "none".into(),
        1 => "once".into(),
        _ => format!("{count} times"),
    }
}

/// Code is written flush left and takes its surroundings' indent; a brace opens a level.
fn indent_at(place: Place, anchored: &[Line]) -> String {
    let (first, last) = (&anchored[0].text, &anchored[anchored.len() - 1].text);
    match place {
        Place::After if last.trim_end().ends_with('{') => format!("{}  ", text::indent(last)),
        Place::After => text::indent(last).to_string(),
        Place::Before if first.trim_start().starts_with('}') => format!("{}  ", text::indent(first)),
        Place::Before | Place::Replace => text::indent(first).to_string(),
    }
}

fn indented(code: &str, indent: &str, eol: Eol) -> Vec<Line> {
    let indented = |line: &str| if line.is_empty() { String::new() } else { format!("{indent}{line}") };
    code.lines().map(|line| Line { text: indented(line), eol }).collect()
}

fn ensure_no_overlap(edits: &[Edit]) -> Result<()> {
    for (at, edit) in edits.iter().enumerate() {
        for other in edits.iter().skip(at + 1) {
            let overlap = edit.swallows(other) || other.swallows(edit);
            ensure!(!overlap, "hooks '{}' and '{}' overlap", edit.hook.name, other.hook.name);
        }
    }
    Ok(())
}

/// The new lines, and the line (from 1) at which each edit now stands.
fn insert(pristine: &[Line], edits: &[Edit]) -> (Vec<Line>, Vec<usize>) {
    let mut lines: Vec<Line> = Vec::new();
    let mut numbers = vec![0; edits.len()];
    let mut replaced_to = 0;
    for at in 0..=pristine.len() {
        for place in [Place::After, Place::Before, Place::Replace] {
            for (index, edit) in edits.iter().enumerate().filter(|(_, edit)| edit.is_at(place, at)) {
                numbers[index] = lines.len() + 1;
                lines.extend_from_slice(&edit.block);
                if place == Place::Replace {
                    replaced_to = at + edit.hook.lines;
                }
            }
        }
        if at >= replaced_to {
            lines.extend(pristine.get(at).cloned());
        }
    }
    let ends_open = pristine.last().is_some_and(|line| line.eol.is_empty());
    end_lines(&mut lines, text::default_eol(pristine), ends_open);
    (lines, numbers)
}

/// Only a last line may lack an end of line, and it does where the pristine one did.
fn end_lines(lines: &mut [Line], eol: Eol, ends_open: bool) {
    for line in lines.iter_mut().filter(|line| line.eol.is_empty()) {
        line.eol = eol;
    }
    if let Some(last) = lines.last_mut().filter(|_| ends_open) {
        last.eol = "";
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state {
            State::Applied(line) => write!(f, "  {:<34} applied        {}:{line}", self.hook, self.file),
            State::Present(line) => write!(f, "  {:<34} already there  {}:{line}", self.hook, self.file),
            State::Drifted(drift) => write!(f, "  {:<34} drifted        {}: {drift}", self.hook, self.file),
        }
    }
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)?;
        self.candidates.iter().try_for_each(|candidate| write!(f, "\n      nearest: {candidate}"))
    }
}

#[cfg(test)]
mod tests;
