//! Heap profiles in memory, read from `profile.proto` (gzip'd or raw) or from gperftools' `heap_v2` text.

mod proto;
mod text;

use anyhow::{Context, Result};
use std::io::Read;
use std::path::Path;

#[derive(Debug, Default)]
pub struct Profile {
    pub sample_types: Vec<ValueType>,
    /// The sample type to show if none is asked for; empty if the file does not say.
    pub default_type: String,
    pub samples: Vec<Sample>,
    pub locations: Vec<Location>,
    /// The main binary comes first.
    pub mappings: Vec<Mapping>,
    /// Mean bytes between two samples.
    pub rate: i64,
    pub time_nanos: i64,
    pub duration_nanos: i64,
    pub comments: Vec<String>,
    /// Full-match regular expressions on function names; empty means none.
    pub drop_frames: String,
    pub keep_frames: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ValueType {
    pub name: String,
    pub unit: String,
}

#[derive(Debug, PartialEq)]
pub struct Sample {
    /// Indices into `Profile::locations`, the leaf first.
    pub stack: Vec<usize>,
    /// One estimate for each of `Profile::sample_types`.
    pub values: Vec<i64>,
}

#[derive(Debug, PartialEq)]
pub struct Location {
    /// Inside the call instruction; 0 if synthetic.
    pub address: u64,
    pub mapping: Option<usize>,
    /// Functions that the profile itself names, innermost first.
    pub functions: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mapping {
    pub start: u64,
    pub limit: u64,
    pub offset: u64,
    pub path: String,
    /// Lowercase hexadecimal; empty if unknown.
    pub build_id: String,
}

impl Profile {
    pub fn read(path: &Path) -> Result<Profile> {
        let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        Profile::parse(&bytes).with_context(|| format!("{}: not a heap profile", path.display()))
    }

    pub fn parse(bytes: &[u8]) -> Result<Profile> {
        let bytes = gunzip_if_needed(bytes)?;
        match std::str::from_utf8(&bytes) {
            Ok(text) if text::recognizes(text) => text::parse(text),
            _ => proto::parse(&bytes),
        }
    }

    /// The column of a sample type. Text that holds live memory only names its columns without the `inuse_`.
    pub fn column(&self, name: &str) -> Option<usize> {
        let plain = name.trim_start_matches("inuse_");
        let position = |name: &str| self.sample_types.iter().position(|sample_type| sample_type.name == name);
        position(name).or_else(|| position(plain))
    }
}

fn gunzip_if_needed(bytes: &[u8]) -> Result<Vec<u8>> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes.to_vec());
    }
    let mut plain = Vec::new();
    flate2::read::MultiGzDecoder::new(bytes).read_to_end(&mut plain).context("its gzip data is damaged")?;
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inuse_column_is_found_under_its_text_name() {
        let named = |name: &str| ValueType { name: name.into(), unit: String::new() };
        let profile = Profile { sample_types: vec![named("objects"), named("space")], ..Profile::default() };
        assert_eq!(profile.column("inuse_space"), Some(1));
        assert_eq!(profile.column("alloc_space"), None);
    }

    #[test]
    fn a_cut_gzip_file_is_an_error() {
        let error = Profile::parse(&[0x1f, 0x8b, 8, 0, 0, 0]).unwrap_err();
        assert_eq!(error.to_string(), "its gzip data is damaged");
    }
}
