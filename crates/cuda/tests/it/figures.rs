//! Every kernel, variant and generation of devices compiles with NVRTC, and takes what `kernels/figures.txt` says: registers, shared
//! memory, stack, and what spills. Compiled, not run: that takes a GPU.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use weir_cuda::gpu::{Nvrtc, Target, compile};
use weir_cuda::kernels::{ActType, CacheType, FAMILIES, Family, HEADERS, Kernel, Options, Variant};

/// The compiler whose figures are kept; another one's differ.
const VERSION: (i32, i32) = (13, 0);
/// A100, H100 and H200, B200.
const GENERATIONS: [Target; 3] = [
    Target::Cubin(80, false),
    Target::Cubin(90, true),
    Target::Cubin(100, false),
];
const HEAD_DIMS: [usize; 3] = [64, 128, 256];
/// Widths of fewer models, which are compiled for one generation.
const RARE_HEAD_DIMS: [usize; 3] = [80, 96, 192];
const RARE_GENERATION: Target = Target::Cubin(90, true);

/// What one kernel takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Figures {
    registers: u32,
    shared: u32,
    stack: u32,
    spilled: u32,
}

fn variants(options: Options) -> Vec<Variant> {
    let mut variants = Vec::new();
    for act in [ActType::Bf16, ActType::F16] {
        for cache in [CacheType::Act, CacheType::Fp8] {
            for head_dim in HEAD_DIMS.into_iter().chain(RARE_HEAD_DIMS) {
                variants.push(Variant {
                    act,
                    cache,
                    head_dim,
                });
            }
        }
    }
    if options == Options::None {
        // What the others differ in does not reach these.
        variants.retain(|variant| (variant.cache, variant.head_dim) == (CacheType::Act, 64));
    }
    variants
}

fn name(kernel: &str, options: Options, variant: &Variant, target: Target) -> String {
    let mut name = format!(
        "{kernel:<16} {:<7} {:<4}",
        target.name(),
        format!("{:?}", variant.act).to_lowercase()
    );
    if options == Options::Cache {
        let cache = if variant.cache == CacheType::Fp8 {
            "fp8"
        } else {
            "act"
        };
        write!(name, " {cache} {:>3}", variant.head_dim).unwrap();
    }
    name
}

/// What the assembler said about each kernel.
fn read(log: &str) -> BTreeMap<String, Figures> {
    let (mut all, mut current) = (BTreeMap::<String, Figures>::new(), String::new());
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            rest.split('\'')
                .next()
                .unwrap_or_default()
                .clone_into(&mut current);
        }
        // "… 32 bytes stack frame, 0 bytes spill stores, …" and "Used 24 registers, used 1 barriers, 128 bytes smem"
        let before = |what: &str| -> Option<u32> {
            let (head, _) = line.split_once(what)?;
            head.rsplit([' ', ','])
                .find(|word| !word.is_empty())?
                .parse()
                .ok()
        };
        let figures = all.entry(current.clone()).or_default();
        figures.stack = before(" bytes stack frame").unwrap_or(figures.stack);
        figures.spilled += before(" bytes spill stores").unwrap_or(0);
        figures.registers = before(" registers").unwrap_or(figures.registers);
        figures.shared = before(" bytes smem").unwrap_or(figures.shared);
    }
    all.remove("");
    all
}

/// Compiles on two threads; gives one line for each kernel.
fn measure(nvrtc: Nvrtc) -> BTreeMap<String, Figures> {
    let mut work: Vec<(&Family, Variant, Target)> = Vec::new();
    for family in &FAMILIES {
        for variant in variants(family.options) {
            let all = GENERATIONS.into_iter().chain([Target::FALLBACK]);
            let is_rare = RARE_HEAD_DIMS.contains(&variant.head_dim);
            let targets = all.filter(|target| !is_rare || *target == RARE_GENERATION);
            work.extend(targets.map(|target| (family, variant, target)));
        }
    }
    let (next, all) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((family, variant, target)) =
                    work.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let compiled = compile(nvrtc, family, variant, *target).unwrap();
                    assert!(!compiled.image.is_empty());
                    let mut figures = read(&compiled.log);
                    if matches!(target, Target::Ptx(_)) {
                        continue;
                    }
                    for kernel in Kernel::ALL
                        .iter()
                        .filter(|kernel| kernel.family() == family.name)
                    {
                        let found = figures.remove(kernel.name()).unwrap();
                        all.lock()
                            .unwrap()
                            .insert(name(kernel.name(), family.options, variant, *target), found);
                    }
                    assert!(figures.is_empty(), "every kernel is known: {figures:?}");
                }
            });
        }
    });
    all.into_inner().unwrap()
}

/// The line that says what the figures are of.
fn sources() -> String {
    let mut hasher = blake3::Hasher::new();
    let families = FAMILIES.iter().map(|family| (family.name, family.source));
    for (name, source) in families.chain(HEADERS) {
        hasher.update(format!("{name} {} {source}", source.len()).as_bytes());
    }
    format!("# Digest of the sources: {}", hasher.finalize().to_hex())
}

fn write(figures: &BTreeMap<String, Figures>) -> String {
    let mut text = format!(
        "# What each kernel takes of a multiprocessor, by NVRTC 13.0.88: registers of a thread, bytes of shared memory, bytes of stack and bytes\n\
         # that spill. Write it anew, with libnvrtc.so.13 of the PyPI package nvidia-cuda-nvrtc==13.0.88 in a folder of LD_LIBRARY_PATH:\n\
         # WEIR_WRITE_FIGURES=1 cargo test -p weir-cuda --features cuda figures\n\
         {}\n\
         #\n\
         # kernel         device  type cache dim        registers shared stack spilled\n",
        sources()
    );
    for (name, figures) in figures {
        let Figures {
            registers,
            shared,
            stack,
            spilled,
        } = figures;
        writeln!(
            text,
            "{name:<42} {registers:>9} {shared:>6} {stack:>5} {spilled:>7}"
        )
        .unwrap();
    }
    text
}

#[test]
fn every_kernel_compiles_for_every_device_and_takes_what_is_written_down() {
    let Some(nvrtc) = Nvrtc::find() else {
        eprintln!(
            "SKIPPED: no kernel is compiled for a GPU without NVRTC; cargo xtask test installs it, and LD_LIBRARY_PATH must name its folder"
        );
        return;
    };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/figures.txt");
    let found = measure(nvrtc);
    if std::env::var_os("WEIR_WRITE_FIGURES").is_some() {
        std::fs::write(&path, write(&found)).unwrap();
    }
    if nvrtc.version().unwrap() != VERSION {
        eprintln!("SKIPPED: figures of another compiler than {VERSION:?} are not compared");
        return;
    }
    let (found, kept) = (write(&found), std::fs::read_to_string(&path).unwrap());
    let changed: Vec<&str> = found
        .lines()
        .filter(|line| !kept.lines().any(|kept| kept == *line))
        .collect();
    assert!(
        changed.is_empty() && found.lines().count() == kept.lines().count(),
        "kernels take other than kernels/figures.txt says; look whether something spills that did not, then write it anew:\n{}",
        changed.join("\n")
    );
}

/// Where there is no NVRTC, this at least is known.
#[test]
fn the_figures_are_of_these_sources() {
    let kept = include_str!("../../kernels/figures.txt");
    let is_of_these = kept.lines().any(|line| line == sources());
    assert!(
        is_of_these,
        "a kernel was changed: kernels/figures.txt says how to make its figures anew"
    );
}

#[test]
fn nothing_spills_but_where_the_widest_heads_do() {
    let kept = include_str!("../../kernels/figures.txt");
    let spills = kept
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter(|line| !line.ends_with(" 0"));
    let others: Vec<&str> = spills.filter(|line| !line.contains(" 256 ")).collect();
    assert!(others.is_empty(), "{}", others.join("\n"));
}
