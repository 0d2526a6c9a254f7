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
    fs::remove_file(&path).unwrap();
    assert!(directory.refresh(dir.path()).unwrap());
    assert_eq!(
        directory.objects().count() + directory.problems().count(),
        0
    );
}

#[test]
fn lists_are_flattened() {
    let directory = read(&[("a.yaml", "kind: List\nitems:\n- {kind: A}\n- {kind: B}\n")]);
    assert_eq!(
        directory.objects().map(RawObject::kind).collect::<Vec<_>>(),
        ["A", "B"]
    );
}
