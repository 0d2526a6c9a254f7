//! The device of the tests: a process that runs the kernels' own sources on the CPU, threads as fibers in an order drawn by a seed
//! (see `shim/`).

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

use half::{bf16, f16};
use weir_cuda::device::{
    Address, Device, DeviceError, Execute, Launch, Product, Properties, ResultType,
};
use weir_cuda::kernels::{ActType, CacheType, FAMILIES, HEADERS, Options, Variant};

/// Multiprocessors of the device: few, so that small tests split attention, though not always.
const MULTIPROCESSORS: u32 = 6;

enum Order {
    Launch(Launch),
    Multiply(Product),
}

/// A process with the kernels of one variant.
pub(crate) struct Shim {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
    pub(crate) variant: Variant,
    seed: u64,
    recording: Option<(usize, Vec<Order>)>,
    recorded: HashMap<usize, Vec<Order>>,
    reads: [Vec<u8>; 2],
    /// Shapes of the products that were announced: what a GPU has a plan for.
    prepared: HashSet<[usize; 5]>,
}

/// Rows, outputs, inputs, stride and bytes of a result of a product.
fn shape(product: &Product) -> [usize; 5] {
    let size = match product.result {
        ResultType::F32 => 4,
        ResultType::Act => 2,
    };
    [
        product.rows,
        product.outputs,
        product.inputs,
        product.stride,
        size,
    ]
}

/// The variant most tests use.
pub(crate) const BF16: Variant = Variant {
    act: ActType::Bf16,
    cache: CacheType::Act,
    head_dim: 64,
};

/// The same in f16, with the narrowest heads. Every variant is compiled once, so tests share them.
pub(crate) const F16: Variant = Variant {
    act: ActType::F16,
    cache: CacheType::Act,
    head_dim: 8,
};

impl Shim {
    /// `None`, and a line that says so, where there is no C++ compiler.
    pub(crate) fn start(variant: Variant, seed: u64) -> Option<Self> {
        let runner = runner(variant)?;
        let mut child = Command::new(runner)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Some(Self {
            input: child.stdin.take().unwrap(),
            output: child.stdout.take().unwrap(),
            child,
            variant,
            seed,
            recording: None,
            recorded: HashMap::new(),
            reads: [Vec::new(), Vec::new()],
            prepared: HashSet::new(),
        })
    }

    fn send(&mut self, order: u8, words: &[u64], data: &[u8]) {
        let mut bytes = vec![order];
        for word in words {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        bytes.extend_from_slice(data);
        // A process that died says so when it does not answer.
        let _ = self.input.write_all(&bytes);
    }

    /// What the process answers, then whether it went well.
    fn answer(&mut self, operation: &str, data: &mut [u8]) -> Result<(), DeviceError> {
        let failed = |cause: String| DeviceError::Operation {
            operation: operation.to_owned(),
            cause,
        };
        let mut status = [0];
        let mut read = self.output.read_exact(data);
        read = read.and_then(|()| self.output.read_exact(&mut status));
        if read.is_err() {
            let status = self.child.wait().unwrap();
            return Err(failed(format!("the process ended with {status}")));
        }
        if status[0] == 0 {
            return Ok(());
        }
        let mut length = [0; 8];
        self.output.read_exact(&mut length).unwrap();
        let mut message = vec![0; usize::try_from(u64::from_le_bytes(length)).unwrap()];
        self.output.read_exact(&mut message).unwrap();
        Err(failed(String::from_utf8(message).unwrap()))
    }

    /// Runs a kernel by its name, also one that only tests have.
    pub(crate) fn run(
        &mut self,
        name: &str,
        grid: [usize; 3],
        threads: usize,
        arguments: &[(u64, u8)],
    ) -> Result<(), DeviceError> {
        self.seed = self.seed.wrapping_add(1);
        let mut data = name.as_bytes().to_vec();
        for word in grid
            .map(|size| size as u64)
            .into_iter()
            .chain([threads as u64, arguments.len() as u64])
        {
            data.extend_from_slice(&word.to_le_bytes());
        }
        for &(word, size) in arguments {
            data.extend_from_slice(&u64::from(size).to_le_bytes());
            data.extend_from_slice(&word.to_le_bytes()[..usize::from(size)]);
        }
        self.send(b'L', &[self.seed, name.len() as u64], &data);
        self.answer(name, &mut [])
    }

    /// Copies numbers to new memory.
    pub(crate) fn put<T: Plain>(&mut self, values: &[T]) -> Address {
        let bytes: Vec<u8> = values.iter().flat_map(Plain::bytes).collect();
        let address = self.allocate("a test", bytes.len() as u64).unwrap();
        self.write(address, &bytes).unwrap();
        address
    }

    /// Copies numbers, as activations, to new memory.
    pub(crate) fn put_act(&mut self, values: &[f32]) -> Address {
        let act = self.variant.act;
        let bits: Vec<u16> = values.iter().map(|&value| act_bits(act, value)).collect();
        self.put(&bits)
    }

    /// New memory for so many bytes.
    pub(crate) fn room(&mut self, bytes: usize) -> Address {
        self.allocate("a test", bytes as u64).unwrap()
    }

    pub(crate) fn get<T: Plain>(&mut self, from: Address, count: usize) -> Vec<T> {
        let mut bytes = vec![0; count * T::SIZE];
        self.read(from, &mut bytes).unwrap();
        bytes.chunks_exact(T::SIZE).map(T::from_bytes).collect()
    }

    pub(crate) fn get_act(&mut self, from: Address, count: usize) -> Vec<f32> {
        let act = self.variant.act;
        let bits: Vec<u16> = self.get(from, count);
        bits.iter().map(|&bits| act_value(act, bits)).collect()
    }
}

impl Drop for Shim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Execute for Shim {
    fn properties(&self) -> Properties {
        Properties {
            multiprocessors: MULTIPROCESSORS,
        }
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), DeviceError> {
        if let Some((_, orders)) = &mut self.recording {
            orders.push(Order::Launch(*launch));
            return Ok(());
        }
        let arguments: Vec<(u64, u8)> = launch.arguments.iter().collect();
        self.run(
            launch.kernel.name(),
            launch.grid,
            launch.threads,
            &arguments,
        )
    }

    fn multiply(&mut self, product: &Product) -> Result<(), DeviceError> {
        if let Some((_, orders)) = &mut self.recording {
            orders.push(Order::Multiply(*product));
            return Ok(());
        }
        assert!(
            self.prepared.contains(&shape(product)),
            "{product:?} was not prepared"
        );
        let Product {
            rows,
            outputs,
            inputs,
            x,
            weights,
            out,
            stride,
            result,
        } = *product;
        let [rows, outputs, inputs, stride] =
            [rows, outputs, inputs, stride].map(|size| size as u64);
        let is_act = u64::from(result == ResultType::Act);
        let words = [
            rows, outputs, inputs, x.0, inputs, weights.0, inputs, out.0, stride, is_act,
        ];
        self.send(b'G', &words, &[]);
        self.answer("product", &mut [])
    }
}

impl Device for Shim {
    fn name(&self) -> String {
        "shim".to_owned()
    }

    fn free_memory(&self) -> Result<u64, DeviceError> {
        Ok(1 << 30)
    }

    fn allocate(&mut self, what: &'static str, bytes: u64) -> Result<Address, DeviceError> {
        self.send(b'A', &[bytes], &[]);
        let mut address = [0; 8];
        self.answer(what, &mut address)?;
        Ok(Address(u64::from_le_bytes(address)))
    }

    fn write(&mut self, to: Address, data: &[u8]) -> Result<(), DeviceError> {
        assert!(self.recording.is_none(), "copies are not recorded");
        self.send(b'W', &[to.0, data.len() as u64], data);
        self.answer("write", &mut [])
    }

    fn read(&mut self, from: Address, data: &mut [u8]) -> Result<(), DeviceError> {
        assert!(self.recording.is_none(), "copies are not recorded");
        self.send(b'R', &[from.0, data.len() as u64], &[]);
        self.answer("read", data)
    }

    fn begin_read(&mut self, place: usize, from: Address, bytes: usize) -> Result<(), DeviceError> {
        let mut data = vec![0; bytes];
        self.read(from, &mut data)?;
        self.reads[place] = data;
        Ok(())
    }

    fn end_read(&mut self, place: usize, data: &mut [u8]) -> Result<(), DeviceError> {
        data.copy_from_slice(&self.reads[place]);
        Ok(())
    }

    fn prepare(&mut self, product: &Product) -> Result<(), DeviceError> {
        self.prepared.insert(shape(product));
        Ok(())
    }

    fn begin_record(&mut self, key: usize) -> Result<(), DeviceError> {
        self.recording = Some((key, Vec::new()));
        Ok(())
    }

    fn end_record(&mut self) -> Result<(), DeviceError> {
        let (key, orders) = self.recording.take().unwrap();
        self.recorded.insert(key, orders);
        Ok(())
    }

    fn replay(&mut self, key: usize) -> Result<bool, DeviceError> {
        let Some(orders) = self.recorded.remove(&key) else {
            return Ok(false);
        };
        for order in &orders {
            match order {
                Order::Launch(launch) => self.launch(launch)?,
                Order::Multiply(product) => self.multiply(product)?,
            }
        }
        self.recorded.insert(key, orders);
        Ok(true)
    }
}

/// A number that is its bytes.
pub(crate) trait Plain: Copy {
    const SIZE: usize;
    fn bytes(&self) -> Vec<u8>;
    fn from_bytes(bytes: &[u8]) -> Self;
}

macro_rules! plain {
    ($($type:ty),*) => {$(
        impl Plain for $type {
            const SIZE: usize = size_of::<$type>();
            fn bytes(&self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }
            fn from_bytes(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().unwrap())
            }
        }
    )*};
}
plain!(u8, u16, u32, i32, f32);

pub(crate) fn act_bits(act: ActType, value: f32) -> u16 {
    match act {
        ActType::Bf16 => bf16::from_f32(value).to_bits(),
        ActType::F16 => f16::from_f32(value).to_bits(),
    }
}

pub(crate) fn act_value(act: ActType, bits: u16) -> f32 {
    match act {
        ActType::Bf16 => bf16::from_bits(bits).to_f32(),
        ActType::F16 => f16::from_bits(bits).to_f32(),
    }
}

/// The program for a variant, compiled once per source. `None` where there is no compiler.
fn runner(variant: Variant) -> Option<PathBuf> {
    // Tests run side by side; one of them compiles.
    static COMPILING: Mutex<()> = Mutex::new(());
    let _one = COMPILING
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut hasher = DefaultHasher::new();
    variant.hash(&mut hasher);
    for source in FAMILIES
        .iter()
        .map(|family| family.source)
        .chain(HEADERS.map(|header| header.1))
    {
        source.hash(&mut hasher);
    }
    for name in ["shim.h", "runner.cpp", "broken.cu"] {
        std::fs::read(root.join("shim").join(name))
            .unwrap()
            .hash(&mut hasher);
    }
    let runner =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("kernels-{:016x}", hasher.finish()));
    if runner.exists() {
        return Some(runner);
    }
    let unfinished = runner.with_extension(std::process::id().to_string());
    let mut command = Command::new("c++");
    command
        // A checked jump would take fibers for frames of one stack.
        .args(["-std=c++17", "-O2", "-U_FORTIFY_SOURCE", "-DBROKEN"])
        // What a GPU refuses ends the process: reads of several numbers at once where they do not begin, and places beyond an array.
        .args([
            "-fsanitize=alignment,bounds",
            "-fsanitize-undefined-trap-on-error",
        ])
        .arg("-I")
        .arg(root.join("shim"));
    command.arg("-I").arg(root.join("kernels"));
    for (name, value) in variant.defines(Options::Cache) {
        command.arg(format!("-D{name}={value}"));
    }
    command
        .arg(root.join("shim/runner.cpp"))
        .arg("-o")
        .arg(&unfinished);
    match command.output() {
        Err(error) => {
            eprintln!(
                "SKIPPED: no kernel is run on the CPU without a C++ compiler ({error}); apt-get install g++"
            );
            None
        }
        Ok(output) => {
            let log = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.success(),
                "kernels do not compile for the CPU:\n{log}"
            );
            std::fs::rename(&unfinished, &runner).unwrap();
            Some(runner)
        }
    }
}
