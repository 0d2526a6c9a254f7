//! The GPU against the CPU backend on the same batches, and replayed steps against steps that are started anew.

use std::error::Error;
use std::path::Path;

use weir_cuda::device::{Address, Device, DeviceError, Launch, Product, Properties};
use weir_cuda::kernels::CacheType;
use weir_cuda::{CudaBackend, CudaOptions, variant};
use weir_model::backend::{Backend as _, NoMasks, Sampled, SamplingParams};
use weir_model::{CpuOptions, OpenFiles, WeightFormat, load_cpu, load_network};
use weir_scheduler::{Batch, SlotId};

use super::Machine;
use super::batches::{Piece, batch};

const SEQUENCES: u32 = 6;
const BLOCKS: u32 = 4;
/// Logits of the small models are up to about 10, and bf16 keeps 8 bits.
const TOLERANCE: f32 = 0.5;

const OPTIONS: CudaOptions = CudaOptions {
    kv_bytes: 1 << 20,
    cache: CacheType::Act,
    block_tokens: 16,
    max_running: 16,
    max_batch_tokens: 300,
    context_tokens: 0,
};

/// A device that does not run what was recorded.
struct Anew<D>(D);

impl<D: Device> Device for Anew<D> {
    fn name(&self) -> String {
        self.0.name()
    }

    fn properties(&self) -> Properties {
        self.0.properties()
    }
    fn allocate(&mut self, what: &'static str, bytes: u64) -> Result<Address, DeviceError> {
        self.0.allocate(what, bytes)
    }
    fn write(&mut self, to: Address, data: &[u8]) -> Result<(), DeviceError> {
        self.0.write(to, data)
    }
    fn read(&mut self, from: Address, data: &mut [u8]) -> Result<(), DeviceError> {
        self.0.read(from, data)
    }
    fn begin_read(&mut self, place: usize, from: Address, bytes: usize) -> Result<(), DeviceError> {
        self.0.begin_read(place, from, bytes)
    }
    fn end_read(&mut self, place: usize, data: &mut [u8]) -> Result<(), DeviceError> {
        self.0.end_read(place, data)
    }
    fn launch(&mut self, launch: &Launch) -> Result<(), DeviceError> {
        self.0.launch(launch)
    }
    fn multiply(&mut self, product: &Product) -> Result<(), DeviceError> {
        self.0.multiply(product)
    }
    fn begin_record(&mut self, key: usize) -> Result<(), DeviceError> {
        self.0.begin_record(key)
    }
    fn end_record(&mut self) -> Result<(), DeviceError> {
        self.0.end_record()
    }
    fn replay(&mut self, _: usize) -> Result<bool, DeviceError> {
        Ok(false)
    }
}

/// Prompts in one step, in two, and then one token at a time.
fn steps() -> Vec<Batch> {
    let token = |slot: u32, position: u32| (slot * 17 + position * 7) % 40;
    let prompt = |slot: u32| 3 + slot * 5;
    let all = |f: &dyn Fn(u32) -> Piece| (0..SEQUENCES).map(f).collect::<Vec<_>>();
    let piece = |slot, start, count, samples| Piece {
        slot,
        start,
        count,
        samples,
    };
    let mut steps = vec![
        batch(&all(&|slot| piece(slot, 0, 3, slot == 0)), BLOCKS, token),
        batch(
            &(1..SEQUENCES)
                .map(|slot| piece(slot, 3, prompt(slot) - 3, true))
                .collect::<Vec<_>>(),
            BLOCKS,
            token,
        ),
    ];
    for at in 0..8 {
        let pieces = all(&|slot| piece(slot, prompt(slot) + at, 1, true));
        steps.push(batch(&pieces, BLOCKS, token));
    }
    steps
}

pub(super) fn run(machine: &Machine, folder: &Path) -> Result<(), Box<dyn Error>> {
    let mut count = 0;
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.join("config.json").exists() {
            let apart = model(machine, &path)?;
            println!(
                "{{\"model\":\"{}\",\"largest_difference\":{apart}}}",
                path.display()
            );
            if apart > TOLERANCE {
                return Err(format!("{} is {apart} apart", path.display()).into());
            }
            count += 1;
        }
    }
    if count == 0 {
        return Err("the folder has no models".into());
    }
    Ok(())
}

/// Largest difference of logits; fails where a replayed step samples other than one that is started anew.
fn model(machine: &Machine, path: &Path) -> Result<f32, Box<dyn Error>> {
    let files = OpenFiles::from_dir(path)?;
    let (config, network) = load_network(&files, WeightFormat::Stored)?;
    let kernels = variant(&network, &config, &OPTIONS);
    let open = || machine.open(&kernels);
    let mut device = CudaBackend::new(open()?, &network, &config, &OPTIONS)?;
    let mut anew = CudaBackend::new(Anew(open()?), &network, &config, &OPTIONS)?;
    let options = CpuOptions {
        kv_bytes: 1 << 20,
        ..CpuOptions::default()
    };
    let mut reference = load_cpu(&files, &options)?;
    for slot in (0..SEQUENCES).map(SlotId) {
        reference.open(slot, &SamplingParams::greedy(), &[], &[]);
        device.open(slot, &SamplingParams::greedy(), &[], &[]);
        anew.open(slot, &SamplingParams::greedy(), &[], &[]);
    }
    let mut apart = 0.0f32;
    let (mut replayed, mut started): (Vec<Sampled>, Vec<Sampled>) = (Vec::new(), Vec::new());
    for step in steps() {
        let want = reference.step_logits(&step)?;
        let got = device.step_logits(&step)?;
        for (got, want) in got.iter().flatten().zip(want.iter().flatten()) {
            let difference = (got - want).abs();
            apart = if difference.is_nan() {
                f32::INFINITY
            } else {
                apart.max(difference)
            };
        }
        device.step(&step, &NoMasks, &mut replayed)?;
        anew.step(&step, &NoMasks, &mut started)?;
        let agree = replayed
            .iter()
            .zip(&started)
            .filter(|(a, b)| a.token == b.token);
        let same = agree.count();
        if same < replayed.len() {
            println!(
                "{{\"model\":\"{}\",\"replayed_tokens\":{},\"same_as_anew\":{same}}}",
                path.display(),
                replayed.len()
            );
        }
    }
    Ok(apart)
}
