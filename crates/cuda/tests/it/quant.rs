//! Products with weights in eight and in four bits, against the weights written out.

use weir_cuda::device::{Address, Arguments, Execute as _, Launch};
use weir_cuda::kernels::{ActType, Kernel};

use crate::numbers::{Random, assert_near};
use crate::shim::{BF16, F16, Shim, act_bits, act_value};

struct Weights {
    outputs: usize,
    inputs: usize,
    bits: usize,
    data: Vec<u8>,
    scales: Vec<u16>,
    minima: Vec<u16>,
}

impl Weights {
    fn new(bits: usize, outputs: usize, inputs: usize) -> Self {
        let mut random = Random((bits + outputs * 1000 + inputs) as u64);
        let groups = inputs.div_ceil(64);
        let panels = outputs.div_ceil(16);
        let mut data = vec![0u8; panels * groups * 128 * bits];
        let mut number = |scale: f32| -> Vec<u16> {
            let numbers =
                (0..panels * groups * 16).map(|_| act_bits(ActType::Bf16, scale * random.float()));
            numbers.collect()
        };
        let scales = number(2.0 / (1 << bits) as f32);
        let minima = number(0.5);
        let mut weights = Self {
            outputs,
            inputs,
            bits,
            data: Vec::new(),
            scales,
            minima,
        };
        for output in 0..outputs {
            for input in 0..inputs {
                let (byte, shift) = weights.place(output, input);
                let q = random.next() as u8;
                data[byte] |= if bits == 8 { q } else { (q & 15) << shift };
            }
        }
        weights.data = data;
        weights
    }

    /// Byte of a weight, and the first of its bits.
    fn place(&self, output: usize, input: usize) -> (usize, usize) {
        let index = output / 16 * self.inputs.div_ceil(64) + input / 64;
        let half = if self.bits == 8 { 64 } else { 32 };
        let k = input % half;
        let byte = index * 128 * self.bits + k / 4 * 64 + output % 16 * 4 + k % 4;
        (byte, input % 64 / half * 4)
    }

    fn value(&self, output: usize, input: usize) -> f32 {
        let (byte, shift) = self.place(output, input);
        let number = (output / 16 * self.inputs.div_ceil(64) + input / 64) * 16 + output % 16;
        let wide = |numbers: &[u16]| act_value(ActType::Bf16, numbers[number]);
        if self.bits == 8 {
            f32::from(self.data[byte].cast_signed()) * wide(&self.scales)
        } else {
            f32::from(self.data[byte] >> shift & 15) * wide(&self.scales) + wide(&self.minima)
        }
    }

    fn multiply(&self, x: &[f32]) -> Vec<f32> {
        let rows = x.chunks(self.inputs);
        rows.flat_map(|row| {
            (0..self.outputs).map(|output| {
                row.iter()
                    .enumerate()
                    .map(|(input, x)| x * self.value(output, input))
                    .sum()
            })
        })
        .collect()
    }

    /// Data, scales and minima on the device.
    fn put(&self, shim: &mut Shim) -> [Address; 3] {
        let minima = if self.bits == 8 {
            Address::NONE
        } else {
            shim.put(&self.minima)
        };
        [shim.put(&self.data), shim.put(&self.scales), minima]
    }
}

/// Kernels of so many bits: those that only read, for up to 1, 2, 4, 8 rows, and the one on the matrix units.
fn kernels(bits: usize) -> ([Kernel; 4], Kernel, Kernel) {
    if bits == 8 {
        let gemv = [
            Kernel::Int8Gemv1,
            Kernel::Int8Gemv2,
            Kernel::Int8Gemv4,
            Kernel::Int8Gemv8,
        ];
        (gemv, Kernel::Int8Gemm, Kernel::Int8Dequantize)
    } else {
        let gemv = [
            Kernel::Int4Gemv1,
            Kernel::Int4Gemv2,
            Kernel::Int4Gemv4,
            Kernel::Int4Gemv8,
        ];
        (gemv, Kernel::Int4Gemm, Kernel::Int4Dequantize)
    }
}

fn check(act: ActType, bits: usize, (outputs, inputs): (usize, usize)) {
    let Some(mut shim) = Shim::start(if act == ActType::F16 { F16 } else { BF16 }, 31) else {
        return;
    };
    let weights = Weights::new(bits, outputs, inputs);
    let [data, scales, minima] = weights.put(&mut shim);
    let (gemv, gemm, dequantize) = kernels(bits);
    let panels = outputs.div_ceil(16);
    for tokens in [1usize, 2, 3, 8, 9, 70] {
        let mut x = Random(tokens as u64).floats(tokens * inputs);
        x.iter_mut()
            .for_each(|x| *x = act_value(act, act_bits(act, *x)));
        let at_x = shim.put_act(&x);
        // One column more than the product has, which stays as it is.
        let stride = outputs + 1;
        let out = shim.put(&vec![9.0f32; tokens * stride]);
        let (kernel, grid, threads) = match tokens {
            9.. => (gemm, [panels.div_ceil(4), tokens.div_ceil(64), 1], 128),
            _ => (
                gemv[tokens.next_power_of_two().ilog2() as usize],
                [panels, 1, 1],
                256,
            ),
        };
        let arguments = Arguments::new()
            .at(at_x)
            .at(data)
            .at(scales)
            .at(minima)
            .at(out);
        let arguments = arguments
            .int(tokens)
            .int(outputs)
            .int(inputs)
            .int(stride)
            .int(0);
        shim.launch(&Launch {
            kernel,
            grid,
            threads,
            arguments,
        })
        .unwrap();
        let got: Vec<f32> = shim.get(out, tokens * stride);
        assert!(
            got.chunks(stride).all(|row| row[outputs] == 9.0),
            "nothing beyond a row"
        );
        let got: Vec<f32> = got
            .chunks(stride)
            .flat_map(|row| &row[..outputs])
            .copied()
            .collect();
        assert_near(
            &format!("{kernel:?} of {tokens}"),
            &got,
            &weights.multiply(&x),
            1e-4 * inputs as f32,
        );
    }
    let out = shim.room(outputs * inputs * 2);
    let arguments = Arguments::new()
        .at(data)
        .at(scales)
        .at(minima)
        .at(out)
        .int(inputs);
    shim.launch(&Launch {
        kernel: dequantize,
        grid: [outputs, 1, 1],
        threads: 64,
        arguments,
    })
    .unwrap();
    let want: Vec<f32> = (0..outputs * inputs)
        .map(|at| weights.value(at / inputs, at % inputs))
        .collect();
    assert_near(
        "dequantized",
        &shim.get_act(out, outputs * inputs),
        &want,
        0.008,
    );
}

#[test]
fn products_with_eight_bits_are_those_with_the_weights_written_out() {
    check(ActType::Bf16, 8, (40, 200));
    check(ActType::F16, 8, (16, 28));
}

#[test]
fn products_with_four_bits_are_those_with_the_weights_written_out() {
    check(ActType::Bf16, 4, (40, 200));
    check(ActType::F16, 4, (72, 20));
}
