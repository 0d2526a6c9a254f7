//! One case on a device and on the CPU.

use std::fmt;

use weir_cuda::device::Device;
use weir_cuda::kernels::Variant;
use weir_cuda::{CudaBackend, CudaOptions, variant};
use weir_model::backend::{Backend, NoMasks, Sampled};
use weir_model::{CpuBackend, CpuOptions, load_cpu, load_network, reference};

use super::{Case, Failure, OPTIONS, Sequences, seeded};

/// Sampled tokens that may be others than the CPU's sampler takes from the same logits, in percent: where a draw falls on the border of two
/// tokens, the last bit of an exponential decides.
const BORDER_PERCENT: usize = 1;

/// What a comparison found.
#[derive(Debug, Default)]
pub(crate) struct Report {
    name: String,
    /// Largest difference of two logits.
    pub(crate) apart: f32,
    /// Largest logit.
    size: f32,
    tolerance: f32,
    /// Tokens that were sampled.
    pub(crate) sampled: usize,
    /// Of these, ones that the CPU's sampler takes from the same logits.
    as_reference: usize,
    /// Rows of replayed steps whose logits have other bits than those of a step that is started anew.
    replayed_otherwise: usize,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            apart,
            size,
            tolerance,
            sampled,
            as_reference,
            replayed_otherwise,
        } = self;
        write!(
            f,
            r#"{{"parity":"{name}","largest_difference":{apart},"largest_logit":{size},"tolerance":{tolerance},"sampled":{sampled},"as_reference":{as_reference},"replayed_otherwise":{replayed_otherwise}}}"#
        )
    }
}

impl Report {
    /// # Errors
    /// Something differs by more than it may.
    pub(crate) fn judge(&self) -> Result<(), Failure> {
        let borders = (self.sampled * BORDER_PERCENT / 100).max(1);
        let is_near = self.apart <= self.tolerance * self.size;
        let is_sampled = self.sampled > 40 && self.sampled - self.as_reference <= borders;
        if is_near && is_sampled && self.replayed_otherwise == 0 {
            return Ok(());
        }
        Err(format!("differs by more than it may: {self}").into())
    }
}

fn options(case: &Case) -> CudaOptions {
    CudaOptions {
        kv_bytes: Some(case.kv_bytes),
        cache: case.cache,
        ..OPTIONS
    }
}

impl Case {
    /// The case's backend on a device that `open` gives for what its kernels are compiled for.
    pub(crate) fn on<D: Device>(
        &self,
        open: impl FnOnce(&Variant) -> Result<D, Failure>,
    ) -> Result<CudaBackend<D>, Failure> {
        let (config, network) = load_network(&self.open()?, self.weights)?;
        let options = options(self);
        let device = open(&variant(&network, &config, &options))?;
        Ok(CudaBackend::new(device, &network, &config, &options)?)
    }

    fn on_cpu(&self) -> Result<CpuBackend, Failure> {
        let options = CpuOptions {
            threads: 1,
            kv_bytes: self.kv_bytes,
            max_running: OPTIONS.max_running,
            max_batch_tokens: OPTIONS.max_batch_tokens,
            weights: self.weights,
            ..CpuOptions::default()
        };
        Ok(load_cpu(&self.open()?, &options)?)
    }
}

/// Logits against the CPU's, those of replayed steps against those of steps that are started anew, and sampled tokens against the CPU's
/// sampler on the same logits. The reference is the same case, unless somebody wants to see that it differs.
pub(crate) fn compare<D: Device>(
    case: &Case,
    reference: &Case,
    open: impl FnOnce(&Variant) -> Result<D, Failure>,
) -> Result<Report, Failure> {
    let mut device = case.on(open)?;
    let mut cpu = reference.on_cpu()?;
    let mut sequences = Sequences::new(case.plan);
    for slot in sequences.slots() {
        let (prompt, params) = (sequences.tokens(slot).0, seeded(slot.0));
        cpu.open(slot, &params, prompt, &[]);
        device.open(slot, &params, prompt, &[]);
    }
    let mut report = Report {
        name: case.name.clone(),
        tolerance: case.tolerance,
        ..Report::default()
    };
    let mut sampled = Vec::new();
    while let Some(batch) = sequences.next() {
        let want = cpu.step_logits(&batch)?;
        device.set_replays(false);
        let anew = device.step_logits(&batch)?;
        device.set_replays(true);
        let got = device.step_logits(&batch)?;
        if (got.len(), anew.len()) != (want.len(), want.len()) {
            return Err(format!(
                "{}: {} rows instead of {}",
                case.name,
                got.len(),
                want.len()
            )
            .into());
        }
        report.compare(&want, &got);
        let others = got.iter().zip(&anew).filter(|(a, b)| !has_same_bits(a, b));
        report.replayed_otherwise += others.count();
        device.step(&batch, &NoMasks, &mut sampled)?;
        report.count(&sequences, &got, &sampled);
        sequences.go_on(sampled.iter().map(|sampled| sampled.token));
    }
    Ok(report)
}

impl Report {
    fn compare(&mut self, want: &[Vec<f32>], got: &[Vec<f32>]) {
        for (got, want) in got.iter().flatten().zip(want.iter().flatten()) {
            let difference = (got - want).abs();
            let is_number = !difference.is_nan();
            let difference = if is_number { difference } else { f32::INFINITY };
            self.apart = self.apart.max(difference);
            self.size = self.size.max(want.abs());
        }
    }

    fn count(&mut self, sequences: &Sequences, logits: &[Vec<f32>], sampled: &[Sampled]) {
        for ((slot, logits), sampled) in sequences.sampled_slots().zip(logits).zip(sampled) {
            let tokens = sequences.tokens(slot);
            let want = reference::sample(logits, &seeded(slot.0), tokens, None);
            self.sampled += 1;
            self.as_reference += usize::from(want.is_some_and(|want| want.token == sampled.token));
        }
    }
}

fn has_same_bits(a: &[f32], b: &[f32]) -> bool {
    let bits = |numbers: &[f32]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    bits(a) == bits(b)
}
