//! All automation of the repository: `cargo xtask COMMAND`.
//!
//! Each command is a module with a `run`; this file only finds it. It must not become a shell script: what a command checks is tested.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line talks to its user"
)]

mod arm;
mod bench;
mod chart;
mod crds;
mod deps;
mod e2e;
mod images;
mod repo;
mod sbom;
mod test;
mod tidy;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask COMMAND

  bench   measure: quickstart, gateway, store or all (bench --help for options)
  crds    write crds/*.yaml from crates/api, and the chart's copies (--check: only compare)
  deps    check the edges between the workspace's crates
  e2e     run the tests on a Kubernetes cluster, or hold one up for people (e2e --help for options)
  images  make the images of operator, gateway and worker, and measure them (images --help for options)
  sbom    write what an image's program is made of (sbom --help for options)
  tidy    check file lengths, TODOs and generated files
  test    run everything a change must pass, and install what that needs (--full: all fault counts)
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["bench", options @ ..] => bench::run(options),
        ["crds"] => crds::write(),
        ["crds", "--check"] => crds::check(),
        ["deps"] => deps::check(),
        ["e2e", options @ ..] => e2e::run(options),
        ["images", options @ ..] => images::run(options),
        ["sbom", options @ ..] => sbom::run(options),
        ["tidy"] => tidy::check(),
        ["test"] => test::run(test::Extent::Usual),
        ["test", "--full"] => test::run(test::Extent::Full),
        _ => {
            eprint!("{HELP}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(summary) => {
            println!("{summary}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
