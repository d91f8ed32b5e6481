//! Finds functions, types and initialised variables in C text: enough of the language to know where each
//! begins and ends, whatever the preprocessor makes of it.

use anyhow::{ensure, Result};
use std::ops::Range;

/// The line ranges (from 0) of every definition that `scope` names: `mi_free`, `_mi_page_empty`, `struct mi_page_s`.
pub fn find(source: &str, scope: &str) -> Result<Vec<Range<usize>>> {
    let code = Code::new(source);
    let words: Vec<&str> = scope.split_whitespace().collect();
    let bodies = match words[..] {
        [name] => code.definitions(name),
        [keyword @ ("struct" | "enum" | "union"), name] => code.types(keyword, name),
        _ => Vec::new(),
    };
    ensure!(words.len() <= 2, "scope '{scope}': expected a name, or struct, enum or union and a name");
    Ok(merge(bodies))
}

/// Every function and initialised variable that is defined, with its line (from 0).
pub fn names(source: &str) -> Vec<(String, usize)> {
    let code = Code::new(source);
    let top_level = code.words().filter(|word| code.depth[word.start] == 0);
    let defined = top_level.filter(|word| code.body_of_definition(word.end).is_some());
    defined.map(|word| (source[word.clone()].to_string(), code.line_of(word.start))).collect()
}

struct Code {
    /// The source with comments, literals and preprocessor lines blanked; as long as the source.
    masked: Vec<u8>,
    /// Brace depth before each byte; `extern "C"` does not count.
    depth: Vec<u16>,
}

enum Branch {
    If,
    Else,
    Endif,
}

impl Code {
    fn new(source: &str) -> Code {
        let (masked, branches) = mask(source.as_bytes());
        let depth = depths(&masked, &branches);
        Code { masked, depth }
    }

    fn definitions(&self, name: &str) -> Vec<Range<usize>> {
        let named = self.words().filter(|word| self.is(word, name) && self.depth[word.start] == 0);
        named.filter_map(|word| Some(self.lines_from(word.start, self.body_of_definition(word.end)?))).collect()
    }

    fn types(&self, keyword: &str, name: &str) -> Vec<Range<usize>> {
        let words: Vec<_> = self.words().collect();
        let is_type = |at: usize| {
            let attributes =
                words[..at].iter().rev().take_while(|word| self.only_blanks(word.end, words[at].start, true));
            attributes.take(4).any(|word| self.is(word, keyword))
        };
        let named = (0..words.len()).filter(|at| self.is(&words[*at], name) && is_type(*at));
        named
            .filter_map(|at| {
                let open = self.skip_blanks(words[at].end);
                (self.at(open) == b'{').then(|| self.lines_from(words[at].start, open))
            })
            .collect()
    }

    /// Past the name of a function: parameters, attributes, `{`. Past a variable's: dimensions, `=`, `{`.
    fn body_of_definition(&self, name_end: usize) -> Option<usize> {
        let mut at = self.skip_blanks(name_end);
        if self.at(at) == b'(' {
            loop {
                at = match self.at(at) {
                    b'{' => return Some(at),
                    b'(' | b'[' => self.skip_group(at)?,
                    byte if is_word(byte) || byte.is_ascii_whitespace() || byte == b':' || byte == b'*' => at + 1,
                    _ => return None,
                };
            }
        }
        while self.at(at) == b'[' {
            at = self.skip_blanks(self.skip_group(at)?);
        }
        let value = (self.at(at) == b'=').then(|| self.skip_blanks(at + 1))?;
        (self.at(value) == b'{').then_some(value)
    }

    /// From the start of the declaration that holds `name` to the brace that closes the one at `open`.
    fn lines_from(&self, name: usize, open: usize) -> Range<usize> {
        let previous = self.masked[..name].iter().rposition(|byte| b";{}".contains(byte)).map_or(0, |at| at + 1);
        self.line_of(self.skip_blanks(previous))..self.line_of(self.closing(open)) + 1
    }

    fn closing(&self, open: usize) -> usize {
        let inside = self.depth[open] + 1;
        let closes = |at: &usize| self.masked[*at] == b'}' && self.depth[*at] == inside;
        (open + 1..self.masked.len()).find(closes).unwrap_or(self.masked.len())
    }

    fn words(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let mut at = 0;
        std::iter::from_fn(move || {
            let start = at + self.masked[at..].iter().position(|byte| is_word(*byte))?;
            at = start + self.masked[start..].iter().take_while(|byte| is_word(**byte)).count();
            Some(start..at)
        })
    }

    fn is(&self, word: &Range<usize>, text: &str) -> bool {
        &self.masked[word.clone()] == text.as_bytes()
    }

    fn at(&self, offset: usize) -> u8 {
        self.masked.get(offset).copied().unwrap_or(0)
    }

    fn skip_blanks(&self, from: usize) -> usize {
        from + self.masked[from..].iter().take_while(|byte| byte.is_ascii_whitespace()).count()
    }

    fn only_blanks(&self, from: usize, to: usize, or_words: bool) -> bool {
        self.masked[from..to].iter().all(|byte| byte.is_ascii_whitespace() || (or_words && is_word(*byte)))
    }

    fn skip_group(&self, open: usize) -> Option<usize> {
        let mut depth = 0;
        let close = self.masked[open..].iter().position(|byte| {
            depth += i32::from(b"([".contains(byte)) - i32::from(b")]".contains(byte));
            depth == 0
        })?;
        Some(open + close + 1)
    }

    fn line_of(&self, offset: usize) -> usize {
        self.masked[..offset.min(self.masked.len())].iter().filter(|byte| **byte == b'\n').count()
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn merge(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_by_key(|range| (range.start, range.end));
    let mut merged: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(last) if range.start < last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}

/// Blanks what is not code, and tells where conditional compilation branches.
fn mask(source: &[u8]) -> (Vec<u8>, Vec<(usize, Branch)>) {
    let mut masked = source.to_vec();
    let mut branches = Vec::new();
    let mut at = 0;
    let mut line_is_blank = true;
    while at < source.len() {
        let end = match source[at] {
            b'#' if line_is_blank => {
                let end = directive_end(source, at);
                branches.extend(branch_of(&source[at + 1..end]).map(|branch| (at, branch)));
                end
            }
            b'/' if source[at..].starts_with(b"//") => line_end(source, at),
            b'/' if source[at..].starts_with(b"/*") => comment_end(source, at),
            quote @ (b'"' | b'\'') => literal_end(source, at, quote),
            byte => {
                line_is_blank = byte == b'\n' || (line_is_blank && byte.is_ascii_whitespace());
                at += 1;
                continue;
            }
        };
        masked[at..end].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
        at = end;
    }
    (masked, branches)
}

fn branch_of(directive: &[u8]) -> Option<Branch> {
    let text = directive.trim_ascii_start();
    let word = &text[..text.iter().take_while(|byte| is_word(**byte)).count()];
    match word {
        b"if" | b"ifdef" | b"ifndef" => Some(Branch::If),
        b"else" | b"elif" => Some(Branch::Else),
        b"endif" => Some(Branch::Endif),
        _ => None,
    }
}

/// The end of the line, continuation lines included.
fn line_end(source: &[u8], from: usize) -> usize {
    let mut at = from;
    while at < source.len() && source[at] != b'\n' {
        at += match &source[at..] {
            [b'\\', b'\r', b'\n', ..] => 3,
            [b'\\', b'\n', ..] => 2,
            _ => 1,
        };
    }
    at.min(source.len())
}

/// As `line_end`, but a comment that begins in the line may end it lines later.
fn directive_end(source: &[u8], from: usize) -> usize {
    let end = line_end(source, from);
    let comment = (from..end).find(|at| source[*at..].starts_with(b"/*") || source[*at..].starts_with(b"//"));
    match comment {
        Some(at) if source[at + 1] == b'*' && comment_end(source, at) > end => comment_end(source, at),
        Some(at) if source[at + 1] == b'*' => directive_end(source, comment_end(source, at)),
        _ => end,
    }
}

fn comment_end(source: &[u8], from: usize) -> usize {
    let body = from + 2;
    source[body..].windows(2).position(|pair| pair == b"*/").map_or(source.len(), |at| body + at + 2)
}

/// A stray apostrophe (`#error don't`) costs at most its line.
fn literal_end(source: &[u8], from: usize, quote: u8) -> usize {
    let mut at = from + 1;
    while at < source.len() && source[at] != b'\n' {
        match source[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    at.min(source.len())
}

/// Alternatives under `#if … #else` each start at the depth of the `#if`: both may open the same body.
fn depths(masked: &[u8], branches: &[(usize, Branch)]) -> Vec<u16> {
    let mut depths = Vec::with_capacity(masked.len());
    let mut open: Vec<bool> = Vec::new(); // one entry per brace: does it count?
    let mut saved: Vec<Vec<bool>> = Vec::new();
    let mut branches = branches.iter().peekable();
    for (at, byte) in masked.iter().enumerate() {
        while let Some((_, branch)) = branches.next_if(|(offset, _)| *offset == at) {
            match branch {
                Branch::If => saved.push(open.clone()),
                Branch::Else => open = saved.last().cloned().unwrap_or_default(),
                Branch::Endif => drop(saved.pop()),
            }
        }
        depths.push(open.iter().filter(|counts| **counts).count() as u16);
        match byte {
            b'{' => open.push(!masked[..at].trim_ascii_end().ends_with(b"extern")),
            b'}' => drop(open.pop()),
            _ => {}
        }
    }
    depths
}

#[cfg(test)]
mod tests {
    use super::*;

    /// First line and the one after the last, from 0.
    fn lines(source: &str, scope: &str) -> Vec<(usize, usize)> {
        find(source, scope).unwrap().iter().map(|range| (range.start, range.end)).collect()
    }

    #[test]
    fn declarations_and_calls_are_no_definitions() {
        let source = "int f(int);\nint g(void) {\n  return f(1);\n}\nint f(int a)\n{\n  return a;\n}\n";
        assert_eq!(lines(source, "f"), [(4, 8)]);
        assert_eq!(lines(source, "h"), []);
    }

    #[test]
    fn attributes_macros_and_split_signatures() {
        let source = "mi_decl_nodiscard extern inline mi_decl_restrict void*\nmi_f(size_t n) mi_attr_noexcept mi_attr_size(1)\n{ return \"}\"; /* } */ }\nint x;\n";
        assert_eq!(lines(source, "mi_f"), [(0, 3)]);
    }

    #[test]
    fn alternative_signatures_share_a_body() {
        let source = "#if A\nstatic int f(int a) {\n#else\nstatic int f(long a) {\n#endif\n  if (a) { a++; }\n  return a;\n}\nint g(void) { }\n";
        assert_eq!(lines(source, "f"), [(1, 8)]);
        assert_eq!(lines(source, "g"), [(8, 9)]);
        let outside = "#if A\nint f(int a)\n#else\nint f(long a)\n#endif\n{\n}\n";
        assert_eq!(lines(outside, "f"), [(1, 7)]);
    }

    #[test]
    fn a_name_defined_twice_has_two_ranges() {
        let source = "#if A\nint f(void) {\n  a();\n}\n#else\nint f(void) {\n}\n#endif\n";
        assert_eq!(lines(source, "f"), [(1, 4), (5, 7)]);
    }

    #[test]
    fn types_by_tag() {
        let source = "struct s;\ntypedef struct s* p;\ntypedef struct attr s {\n  struct t { int a; } t;\n} s_t;\nunion s { int b; };\n";
        assert_eq!(lines(source, "struct s"), [(2, 5)]);
        assert_eq!(lines(source, "struct t"), [(3, 4)]);
        assert_eq!(lines(source, "union s"), [(5, 6)]);
    }

    #[test]
    fn initialised_variables() {
        let source =
            "extern int table[4];\nstatic int table[M(4)] = {\n  1, 2\n};\nconst s_t empty = { 0 };\nint i = 3;\n";
        assert_eq!(lines(source, "table"), [(1, 4)]);
        assert_eq!(lines(source, "empty"), [(4, 5)]);
        assert_eq!(lines(source, "i"), []);
    }

    #[test]
    fn extern_c_and_literals_do_not_count() {
        let source = "#ifdef __cplusplus\nextern \"C\" {\n#endif\n#define OPEN {\nint f(void) { char c = '{'; return c; }\n#error don't\nint g(void) {\n}\n#ifdef __cplusplus\n}\n#endif\n";
        assert_eq!(lines(source, "f"), [(4, 5)]);
        assert_eq!(lines(source, "g"), [(6, 8)]);
        let found: Vec<String> = names(source).into_iter().map(|(name, _)| name).collect();
        assert_eq!(found, ["f", "g"]);
    }

    #[test]
    fn comments_may_run_on_from_a_directive() {
        let source = "#define A 1 /* one\n { */\nint f(void) { /* { */ // {\n}\nint g(void) {}\n";
        assert_eq!(lines(source, "f"), [(2, 4)]);
        assert_eq!(lines(source, "g"), [(4, 5)]);
    }
}
