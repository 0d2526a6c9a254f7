use super::*;

fn read(files: &[(&str, &str)]) -> Directory {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(dir.path().join(name), text).unwrap();
    }
    let mut directory = Directory::default();
    directory.refresh(dir.path()).unwrap();
    directory
}

#[test]
fn documents_know_the_line_they_begin_on() {
    let directory = read(&[(
        "a.yaml",
        "# head\nkind: A\nmetadata: {name: a}\n---\nkind: B\n--- # c\nkind: C\n",
    )]);
    let found: Vec<_> = directory
        .objects()
        .map(|o| (o.kind().to_owned(), o.line))
        .collect();
    assert_eq!(
        found,
        [
            ("A".to_owned(), 1),
            ("B".to_owned(), 4),
            ("C".to_owned(), 6)
        ]
    );
}

#[test]
fn bad_yaml_is_named_by_file_line_and_cause() {
    struct Case {
        name: &'static str,
        given: &'static str,
        want: &'static str,
    }
    let deep = Box::leak(format!("a: {}1{}", "[".repeat(5000), "]".repeat(5000)).into_boxed_str());
    let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n\
                d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n\
                g: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\n";
    let cases = [
        Case {
            name: "unclosed bracket",
            given: "kind: A\nspec: [1, 2\n",
            want: ".yaml:",
        },
        Case {
            name: "duplicate key",
            given: "kind: A\nkind: B\n",
            want: "duplicate entry with key \"kind\"",
        },
        Case {
            name: "tab",
            given: "kind: A\nspec:\n\tx: 1\n",
            want: "is not valid YAML",
        },
        Case {
            name: "second document",
            given: "kind: A\n---\nkind: [\n",
            want: ".yaml:",
        },
        Case {
            name: "scalar document",
            given: "just words\n",
            want: "expected an object with apiVersion and kind, found text",
        },
        Case {
            name: "list document",
            given: "- a\n- b\n",
            want: "found a list",
        },
        Case {
            name: "not JSON",
            given: "kind: A\n? [x]\n: 1\n",
            want: "cannot express",
        },
        Case {
            name: "deep nesting",
            given: deep,
            want: "is not valid YAML",
        },
        Case {
            name: "alias bomb",
            given: bomb,
            want: "is not valid YAML",
        },
    ];
    for case in cases {
        let directory = read(&[("x.yaml", case.given)]);
        let problems: Vec<_> = directory.problems().map(ToString::to_string).collect();
        assert!(
            problems.len() == 1 && problems[0].contains(case.want),
            "{}: wanted {:?} in {problems:?}",
            case.name,
            case.want
        );
    }
}

#[test]
fn a_file_that_breaks_keeps_the_objects_it_had() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.yaml");
    fs::write(&path, "kind: A\n").unwrap();
    let mut directory = Directory::default();
    assert!(directory.refresh(dir.path()).unwrap());
    assert!(!directory.refresh(dir.path()).unwrap(), "nothing changed");
    fs::write(&path, "kind: [\n").unwrap();
    assert!(directory.refresh(dir.path()).unwrap());
    assert_eq!(directory.objects().count(), 1);
    assert_eq!(directory.problems().count(), 1);
    fs::write(dir.path().join("b.yaml"), "kind: B\n").unwrap();
    fs::remove_file(&path).unwrap();
    let now = Instant::now();
    directory.refresh_at(dir.path(), now).unwrap();
    assert_eq!(directory.objects().count(), 2, "it may come back at once");
    assert!(directory.refresh_at(dir.path(), now + GONE_AFTER).unwrap());
    assert_eq!(
        (directory.objects().count(), directory.problems().count()),
        (1, 0)
    );
}

#[test]
fn whatever_stands_where_a_file_was_its_objects_stay_and_one_line_says_why() {
    type Damage = fn(&Path);
    let cases: [(&str, Damage, &str); 5] = [
        ("emptied", |path| fs::write(path, "").unwrap(), "is empty"),
        (
            "a directory",
            |path| {
                fs::remove_file(path).unwrap();
                fs::create_dir(path).unwrap();
            },
            "is not a file",
        ),
        (
            "a link to nowhere",
            |path| {
                fs::remove_file(path).unwrap();
                std::os::unix::fs::symlink("nowhere", path).unwrap();
            },
            "cannot read the file",
        ),
        (
            "too large",
            |path| fs::write(path, vec![b'#'; 5 << 20]).unwrap(),
            "has 5242880 bytes",
        ),
        (
            "not text",
            |path| fs::write(path, [0xff, 0xfe]).unwrap(),
            "is not UTF-8",
        ),
    ];
    for (name, damage, want) in cases {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.yaml");
        fs::write(&path, "kind: A\n").unwrap();
        let mut directory = Directory::default();
        directory.refresh(dir.path()).unwrap();
        damage(&path);
        let now = Instant::now();
        for later in [Duration::ZERO, GONE_AFTER, GONE_AFTER * 3] {
            directory.refresh_at(dir.path(), now + later).unwrap();
            assert_eq!(directory.objects().count(), 1, "{name}");
            let problems: Vec<String> = directory.problems().map(ToString::to_string).collect();
            assert!(
                problems.len() == 1 && problems[0].contains(want),
                "{name}: {problems:?}"
            );
        }
        // The same text as before is good again.
        fs::remove_dir(&path)
            .or_else(|_| fs::remove_file(&path))
            .unwrap();
        fs::write(&path, "kind: A\n").unwrap();
        assert!(directory.refresh(dir.path()).unwrap(), "{name}");
        assert_eq!(
            (directory.objects().count(), directory.problems().count()),
            (1, 0),
            "{name}"
        );
    }
}

#[test]
fn a_directory_that_lost_all_its_files_is_no_order_to_stop_serving() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.yaml");
    fs::write(&path, "kind: A\n").unwrap();
    let mut directory = Directory::default();
    directory.refresh(dir.path()).unwrap();
    fs::remove_file(&path).unwrap();
    for _ in 0..2 {
        let later = Instant::now() + GONE_AFTER * 2;
        let problem = directory.refresh_at(dir.path(), later).unwrap_err();
        assert!(problem.to_string().contains("no YAML file"), "{problem}");
        assert_eq!(directory.objects().count(), 1);
    }
}

#[test]
fn lists_are_flattened() {
    let directory = read(&[("a.yaml", "kind: List\nitems:\n- {kind: A}\n- {kind: B}\n")]);
    assert_eq!(
        directory.objects().map(RawObject::kind).collect::<Vec<_>>(),
        ["A", "B"]
    );
}
