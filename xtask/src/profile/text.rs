//! gperftools' `heap_v2`: raw sample counts with return addresses, scaled here to estimates.

use super::{Location, Mapping, Profile, Sample, ValueType};
use anyhow::{bail, ensure, Context, Result};
use regex_lite::Regex;
use std::collections::HashMap;

const HEADER: &str = "heap profile:";
const MAPPINGS: [&str; 2] = ["MAPPED_LIBRARIES:", "--- Memory map: ---"];

/// Text names no frames to drop: these are the allocator's entry points as C and C++ programs see them.
const ALLOCATOR_FRAMES: &str = concat!(
    r"_?mi_.*|(__libc_)?(malloc|calloc|realloc|memalign|valloc|pvalloc)|reallocarray|reallocf|aligned_alloc|",
    r"(__)?posix_memalign|operator new(\[\])?|(std::|__gnu_cxx::)?(__)?new_allocator.*::allocate"
);

pub fn recognizes(text: &str) -> bool {
    first_line(text).is_some_and(|line| line.starts_with(HEADER))
}

pub fn parse(text: &str) -> Result<Profile> {
    let header = Header::parse(first_line(text).unwrap_or_default())?;
    let mut reader = Reader::new(header)?;
    let mut in_mappings = false;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if MAPPINGS.contains(&line) {
            in_mappings = true;
        } else if let Some(comment) = line.strip_prefix('#') {
            reader.profile.comments.push(comment.trim().to_string());
        } else if !line.is_empty() && !line.starts_with(HEADER) {
            let read = if in_mappings { reader.mapping(line) } else { reader.sample(line) };
            read.with_context(|| format!("line {}: {line:?}", number + 1))?;
        }
    }
    Ok(reader.finish())
}

fn first_line(text: &str) -> Option<&str> {
    text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'))
}

struct Header {
    rate: i64,
    /// The bracketed columns differ from the live ones, so they count allocations.
    has_alloc: bool,
}

impl Header {
    fn parse(line: &str) -> Result<Header> {
        let pattern = Regex::new(r"^heap profile: *(\d+): *(\d+) *\[ *(\d+): *(\d+) *\] *@ *(heap[_a-z0-9]*)/?(\d*)$")?;
        let fields = pattern
            .captures(line)
            .with_context(|| format!("header {line:?} is not 'heap profile: N: B [N: B] @ heap_v2/RATE'"))?;
        let differs = |inuse: usize, alloc: usize| fields[alloc] != fields[inuse] && &fields[alloc] != "0";
        Ok(Header { rate: rate(&fields[5], &fields[6])?, has_alloc: differs(1, 3) || differs(2, 4) })
    }
}

fn rate(kind: &str, digits: &str) -> Result<i64> {
    let rate = if digits.is_empty() { 1 } else { digits.parse().with_context(|| format!("sample rate {digits}"))? };
    match kind {
        "heap_v2" | "heapz_v2" => Ok(rate),
        "heapprofile" => Ok(1),
        "heap" => Ok(rate / 2),
        _ => bail!("'{kind}' in the header is not heap_v2, heap or heapprofile"),
    }
}

/// The true amounts that `count` sampled objects of together `bytes` stand for. Truncates, as pprof does.
fn scale(count: i64, bytes: i64, rate: i64) -> (i64, i64) {
    if count == 0 || bytes == 0 {
        return (0, 0);
    }
    if rate <= 1 {
        return (count, bytes);
    }
    let mean = bytes as f64 / count as f64;
    let weight = 1.0 / (1.0 - (-mean / rate as f64).exp());
    ((count as f64 * weight) as i64, (bytes as f64 * weight) as i64)
}

struct Reader {
    profile: Profile,
    has_alloc: bool,
    locations: HashMap<u64, usize>,
    sample_line: Regex,
    mapping_line: Regex,
}

impl Reader {
    fn new(header: Header) -> Result<Reader> {
        let names: &[_] = match header.has_alloc {
            true => &["alloc_objects", "alloc_space", "inuse_objects", "inuse_space"],
            false => &["objects", "space"],
        };
        let sample_types = names.iter().map(|name| ValueType {
            name: name.to_string(),
            unit: if name.ends_with("objects") { "count" } else { "bytes" }.to_string(),
        });
        let profile = Profile {
            sample_types: sample_types.collect(),
            rate: header.rate,
            drop_frames: ALLOCATOR_FRAMES.to_string(),
            ..Profile::default()
        };
        Ok(Reader {
            profile,
            has_alloc: header.has_alloc,
            locations: HashMap::new(),
            sample_line: Regex::new(r"^(-?\d+): *(-?\d+) *\[ *(\d+): *(\d+) *\] @([ x0-9a-f]*)$")?,
            mapping_line: Regex::new(
                r"^([0-9a-f]+)-([0-9a-f]+) +([-rwxps]+) +([0-9a-f]+) +[0-9a-f]+:[0-9a-f]+ +\d+ *(.*)$",
            )?,
        })
    }

    fn sample(&mut self, line: &str) -> Result<()> {
        let fields = self.sample_line.captures(line).context("expected 'N: B [N: B] @ 0xADDRESS …'")?;
        let mut numbers = [0; 4];
        for (number, field) in numbers.iter_mut().zip(fields.iter().skip(1).flatten()) {
            *number = field.as_str().parse()?;
        }
        let addresses = fields[5].split_whitespace().map(parse_address).collect::<Result<Vec<_>>>()?;

        let [inuse_count, inuse_bytes, alloc_count, alloc_bytes] = numbers;
        let mut values = Vec::new();
        if self.has_alloc {
            values.extend(self.estimate(alloc_count, alloc_bytes)?);
        }
        values.extend(self.estimate(inuse_count, inuse_bytes)?);
        let stack = addresses.into_iter().map(|address| self.location(address)).collect();
        self.profile.samples.push(Sample { stack, values });
        Ok(())
    }

    fn estimate(&self, count: i64, bytes: i64) -> Result<[i64; 2]> {
        ensure!(count != 0 || bytes == 0, "{bytes} bytes in 0 objects");
        let (count, bytes) = scale(count, bytes, self.profile.rate);
        Ok([count, bytes])
    }

    /// A return address may be the next line's, or the next function's: one byte before it is inside the call.
    fn location(&mut self, return_address: u64) -> usize {
        let locations = &mut self.profile.locations;
        *self.locations.entry(return_address).or_insert_with(|| {
            let functions = synthetic(return_address).map(str::to_string).into_iter().collect();
            locations.push(Location { address: return_address.wrapping_sub(1), mapping: None, functions });
            locations.len() - 1
        })
    }

    fn mapping(&mut self, line: &str) -> Result<()> {
        // gperftools appends lines of other forms after the map: only its own lines matter.
        let Some(fields) = self.mapping_line.captures(line) else { return Ok(()) };
        if !fields[3].contains('x') {
            return Ok(());
        }
        let number = |index: usize| u64::from_str_radix(&fields[index], 16);
        let path = unescape(fields[5].trim_end_matches(" (deleted)"));
        let mapping =
            Mapping { start: number(1)?, limit: number(2)?, offset: number(4)?, path, build_id: String::new() };
        self.profile.mappings.push(mapping);
        Ok(())
    }

    fn finish(mut self) -> Profile {
        let mappings = &self.profile.mappings;
        for location in &mut self.profile.locations {
            let holds = |mapping: &Mapping| (mapping.start..mapping.limit).contains(&location.address);
            location.mapping = mappings.iter().position(holds);
        }
        self.profile
    }
}

/// What stands in the place of an address, in the text that mi_prof writes.
fn synthetic(address: u64) -> Option<&'static str> {
    match address {
        1 => Some("[other]"),
        2 => Some("[truncated]"),
        _ => None,
    }
}

fn parse_address(word: &str) -> Result<u64> {
    let digits = word.trim_start_matches("0x");
    u64::from_str_radix(digits, 16).with_context(|| format!("address {word}"))
}

/// Blanks and the like in paths are written as `\ooo`, as `/proc/self/maps` writes a line feed.
fn unescape(path: &str) -> String {
    let mut parts = path.split('\\');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        match part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                bytes.extend(&part.as_bytes()[3..]);
            }
            None => {
                bytes.push(b'\\');
                bytes.extend(part.as_bytes());
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = "\
heap profile:    142: 18874368 [   142: 18874368] @ heap_v2/524288
# resized blocks are scaled by their new size
     12: 6291456 [    12: 6291456] @ 0x7ff6a2b41a2c 0x7ff6a2b3f110
      1: 64 [1: 64] @ 0x7ff6a2b41a2c 0x10

MAPPED_LIBRARIES:
7ff6a2b30000-7ff6a2c50000 r-xp 00001000 00:00 0 /usr/bin/my\\040app
7ff6a2c50000-7ff6a2c60000 rw-p 00000000 00:00 0 /usr/bin/my\\040app
";

    #[test]
    fn lines_are_scaled_one_by_one() {
        let profile = parse(EXAMPLE).unwrap();
        // 12 objects of 512 KiB at a rate of 512 KiB: 1/(1 - 1/e) = 1.5819767, truncated
        assert_eq!(profile.samples[0].values, [18, 9_952_936]);
        // One object of 64 bytes stands for about rate/64 of them.
        assert_eq!(profile.samples[1].values, [8192, 524_320]);
        assert_eq!(profile.rate, 524_288);
        assert_eq!(profile.sample_types[1], ValueType { name: "space".into(), unit: "bytes".into() });
    }

    #[test]
    fn addresses_point_into_the_call_and_find_their_mapping() {
        let profile = parse(EXAMPLE).unwrap();
        assert_eq!(profile.samples[0].stack, [0, 1]);
        assert_eq!(profile.samples[1].stack, [0, 2]);
        assert_eq!(profile.locations[0], Location { address: 0x7ff6a2b41a2b, mapping: Some(0), functions: vec![] });
        assert_eq!(profile.locations[2], Location { address: 0xf, mapping: None, functions: vec![] });
        assert_eq!(profile.mappings.len(), 1, "only executable mappings hold code");
        assert_eq!(profile.mappings[0].path, "/usr/bin/my app");
        assert_eq!(profile.mappings[0].offset, 0x1000);
        assert_eq!(profile.comments, ["resized blocks are scaled by their new size"]);
    }

    #[test]
    fn a_rate_of_one_is_not_scaled() {
        assert_eq!(scale(3, 300, 1), (3, 300));
        assert_eq!(scale(3, 300, 0), (3, 300));
        assert_eq!(scale(0, 0, 4096), (0, 0));
    }

    #[test]
    fn the_header_word_decides_the_rate() {
        let rate_of = |tail: &str| Header::parse(&format!("heap profile: 1: 2 [1: 2] @ {tail}")).unwrap().rate;
        assert_eq!(rate_of("heap_v2/4096"), 4096);
        assert_eq!(rate_of("heap/4096"), 2048);
        assert_eq!(rate_of("heapprofile"), 1);
    }

    #[test]
    fn alloc_columns_count_when_they_differ() {
        let text = "heap profile: 1: 100 [4: 400] @ heap_v2/1\n1: 100 [4: 400] @ 0x5\n";
        let profile = parse(text).unwrap();
        assert_eq!(profile.samples[0].values, [4, 400, 1, 100]);
        assert_eq!(profile.column("inuse_space"), Some(3));
    }

    #[test]
    fn frames_without_an_address_have_names() {
        let text = "heap profile: 1: 8 [1: 8] @ heap_v2/1\n1: 8 [1: 8] @ 0x5 0x2\n1: 8 [1: 8] @ 0x1\n";
        let profile = parse(text).unwrap();
        let names = |sample: usize| {
            profile.samples[sample].stack.iter().map(|&at| profile.locations[at].functions.join("")).collect::<Vec<_>>()
        };
        assert_eq!(names(0), ["", "[truncated]"]);
        assert_eq!(names(1), ["[other]"]);
    }

    #[test]
    fn errors_name_the_line() {
        let error = parse("heap profile: 1: 1 [1: 1] @ heap_v2/1\n0: 9 [0: 0] @ 0x5\n").unwrap_err();
        assert_eq!(format!("{error:#}"), "line 2: \"0: 9 [0: 0] @ 0x5\": 9 bytes in 0 objects");
        assert!(parse("heap profile: x").is_err());
    }

    #[test]
    fn allocator_frames_are_recognized() {
        let pattern = Regex::new(&format!("^(?:{ALLOCATOR_FRAMES})$")).unwrap();
        for name in ["malloc", "calloc", "mi_malloc", "_mi_malloc_generic", "operator new[]", "posix_memalign"] {
            assert!(pattern.is_match(name), "{name}");
        }
        for name in ["my_malloc", "main", "xmalloc", "mine_alloc", "freelist"] {
            assert!(!pattern.is_match(name), "{name}");
        }
    }
}
