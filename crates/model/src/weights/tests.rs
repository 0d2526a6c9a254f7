use std::io::Write as _;

use super::*;
use crate::files::FileError;
use crate::files::OpenFiles;

/// A safetensors file of f32 tensors, all zero.
fn shard(tensors: &[(&str, &[usize])]) -> Vec<u8> {
    let (mut header, mut at) = (Vec::new(), 0);
    for (name, shape) in tensors {
        let end = at + shape.iter().product::<usize>() * 4;
        header.push(format!(
            r#""{name}":{{"dtype":"F32","shape":{shape:?},"data_offsets":[{at},{end}]}}"#
        ));
        at = end;
    }
    let header = format!("{{{}}}", header.join(","));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + at, 0);
    bytes
}

fn open(files: &[(&str, Vec<u8>)]) -> Result<TensorFiles, WeightsError> {
    let file = |bytes: &Vec<u8>| {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    };
    TensorFiles::open(&OpenFiles::new(
        files
            .iter()
            .map(|(name, bytes)| ((*name).to_owned(), file(bytes))),
    ))
}

fn index(map: &[(&str, &str)]) -> Vec<u8> {
    serde_json::json!({"weight_map": map.iter().copied().collect::<BTreeMap<_, _>>()})
        .to_string()
        .into_bytes()
}

#[test]
fn missing_extra_and_misshaped_tensors_are_named() {
    let mut files = open(&[(
        WEIGHTS_FILE,
        shard(&[("a", &[2, 3]), ("b", &[4]), ("c", &[1])]),
    )])
    .unwrap();
    assert_eq!(files.take("a", &[2, 3]).unwrap().rows, 2);
    assert_eq!(files.take("b", &[4]).unwrap().to_vec(), [0.0; 4]);
    let error = files.take("d", &[5, 6]).unwrap_err().to_string();
    assert_eq!(
        error,
        "tensor \"d\" is missing; the configuration asks for shape [5, 6]"
    );
    let error = files.take("a", &[3, 2]).unwrap_err().to_string();
    assert!(
        error.starts_with("tensor \"a\" in \"model.safetensors\" has shape [2, 3]"),
        "{error}"
    );
    let error = files.finish(|_| false).unwrap_err().to_string();
    assert!(
        error.starts_with("tensor \"c\" in \"model.safetensors\" and 0 more have no place"),
        "{error}"
    );
}

#[test]
fn broken_files_are_refused() {
    let whole = shard(&[("a", &[8])]);
    let mut long_header = whole.clone();
    long_header[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    let mut longer = whole.clone();
    longer.push(0);
    let mut overlapping = shard(&[("a", &[8]), ("b", &[8])]);
    let place = overlapping
        .windows(7)
        .position(|part| part == b"[32,64]")
        .unwrap();
    overlapping[place..place + 7].copy_from_slice(b"[16,48]");
    let cases = [
        ("cut", whole[..whole.len() - 1].to_vec()),
        ("longer than its header says", longer),
        ("header beyond the file", long_header),
        ("tensors overlap", overlapping),
        ("no header", b"abc".to_vec()),
        ("not JSON", [&4u64.to_le_bytes()[..], b"[1] "].concat()),
    ];
    for (name, bytes) in cases {
        let error = open(&[(WEIGHTS_FILE, bytes)]).err();
        assert!(
            matches!(error, Some(WeightsError::Header { .. })),
            "{name}: {error:?}"
        );
    }
    assert!(matches!(
        open(&[(WEIGHTS_FILE, Vec::new())]).err(),
        Some(WeightsError::Header { .. } | WeightsError::Map { .. })
    ));
    assert!(matches!(
        open(&[("pytorch_model.bin", Vec::new())]).err(),
        Some(WeightsError::Absent)
    ));
}

#[test]
fn shards_must_be_what_the_index_says() {
    let (one, two) = (shard(&[("a", &[2])]), shard(&[("b", &[3])]));
    let good = index(&[("a", "1.safetensors"), ("b", "2.safetensors")]);
    let mut files = open(&[
        ("1.safetensors", one.clone()),
        ("2.safetensors", two.clone()),
        (WEIGHTS_INDEX_FILE, good.clone()),
    ])
    .unwrap();
    assert!(
        files.take("a", &[2]).is_ok()
            && files.take("b", &[3]).is_ok()
            && files.finish(|_| false).is_ok()
    );
    let error = open(&[("1.safetensors", one.clone()), (WEIGHTS_INDEX_FILE, good)])
        .err()
        .unwrap();
    assert!(
        matches!(&error, WeightsError::File(FileError::Missing { name }) if name == "2.safetensors"),
        "{error:?}"
    );
    let wrong = index(&[("a", "1.safetensors"), ("c", "1.safetensors")]);
    let error = open(&[("1.safetensors", one.clone()), (WEIGHTS_INDEX_FILE, wrong)])
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("tensor \"c\" is in \"1.safetensors\", which does not hold it"),
        "{error}"
    );
    let twice = index(&[("a", "1.safetensors"), ("b", "2.safetensors")]);
    let both = shard(&[("a", &[2]), ("b", &[3])]);
    let error = open(&[
        ("1.safetensors", both),
        ("2.safetensors", two),
        (WEIGHTS_INDEX_FILE, twice),
    ])
    .err();
    assert!(
        matches!(error, Some(WeightsError::Twice { .. })),
        "{error:?}"
    );
    assert!(matches!(
        open(&[(WEIGHTS_INDEX_FILE, b"{}".to_vec())]).err(),
        Some(WeightsError::Index { .. })
    ));
}
