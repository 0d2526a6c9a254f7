//! A network's weights on the device: matrices in the activations' type or quantized as they are, vectors as f32.

use half::{bf16, f16};
use weir_model::config::ModelConfig;
use weir_model::network::{self, Linear, Network};
use weir_model::quant::{QuantKind, Weights};
use weir_model::weights::{Matrix, WeightType};

use crate::device::{Address, Device, DeviceError};
use crate::kernels::ActType;

/// Bytes that are converted at a time.
const PIECE: usize = 8 << 20;

/// Where the weights of a matrix are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// (outputs, inputs) of the activations' type.
    Act(Address),
    /// As `kernels/quant.cuh` says; minima only in four bits.
    Quantized {
        kind: QuantKind,
        data: Address,
        scales: Address,
        minima: Address,
    },
}

/// A matrix, and the first column of the result that it makes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub place: Place,
    pub outputs: usize,
    pub inputs: usize,
    pub column: usize,
}

/// One or several products of the same input, side by side.
#[derive(Clone, Debug)]
pub(crate) struct Products {
    pub parts: Vec<Part>,
    /// Columns of all together.
    pub outputs: usize,
    /// (outputs) f32, or none
    pub bias: Address,
}

pub(crate) struct LayerWeights {
    pub attention_norm: Address,
    pub mlp_norm: Address,
    /// Norms of queries and of keys, or none.
    pub qk_norm: (Address, Address),
    pub qkv: Products,
    pub o: Products,
    pub gate_up: Products,
    pub down: Products,
}

pub(crate) struct DeviceWeights {
    pub embedding: Place,
    pub layers: Vec<LayerWeights>,
    pub final_norm: Address,
    pub head: Products,
}

/// f16 where the model is stored in it, which has three bits more and less range; else bf16.
pub(crate) fn act_type(network: &Network) -> ActType {
    match &network.embedding {
        Weights::Stored(matrix) if matrix.dtype == WeightType::F16 => ActType::F16,
        _ => ActType::Bf16,
    }
}

/// Copies a network to the device.
pub(crate) fn upload(
    device: &mut impl Device,
    network: &Network,
    config: &ModelConfig,
    act: ActType,
) -> Result<DeviceWeights, DeviceError> {
    let mut uploader = Uploader { device, act };
    let embedding = uploader.matrix(&network.embedding)?;
    let head = if config.tied_embeddings {
        embedding
    } else {
        uploader.matrix(&network.head)?
    };
    let head = Products {
        parts: vec![Part {
            place: head,
            outputs: network.head.rows(),
            inputs: network.head.cols(),
            column: 0,
        }],
        outputs: network.head.rows(),
        bias: Address::NONE,
    };
    let layers = network
        .layers
        .iter()
        .map(|layer| uploader.layer(layer))
        .collect::<Result<_, _>>()?;
    Ok(DeviceWeights {
        embedding,
        layers,
        final_norm: uploader.vector(&network.final_norm)?,
        head,
    })
}

struct Uploader<'a, D> {
    device: &'a mut D,
    act: ActType,
}

impl<D: Device> Uploader<'_, D> {
    fn layer(&mut self, layer: &network::Layer) -> Result<LayerWeights, DeviceError> {
        let qk_norm = match &layer.qk_norm {
            Some((queries, keys)) => (self.vector(queries)?, self.vector(keys)?),
            None => (Address::NONE, Address::NONE),
        };
        Ok(LayerWeights {
            attention_norm: self.vector(&layer.attention_norm)?,
            mlp_norm: self.vector(&layer.mlp_norm)?,
            qk_norm,
            qkv: self.products(&[&layer.q, &layer.k, &layer.v])?,
            o: self.products(&[&layer.o])?,
            gate_up: self.products(&[&layer.gate, &layer.up])?,
            down: self.products(&[&layer.down])?,
        })
    }

    /// Products of the same input. Those that are not quantized become one matrix.
    fn products(&mut self, linears: &[&Linear]) -> Result<Products, DeviceError> {
        let outputs = linears.iter().map(|linear| linear.weight.rows()).sum();
        let inputs = linears[0].weight.cols();
        let stored: Option<Vec<&Matrix>> = linears
            .iter()
            .map(|linear| match &linear.weight {
                Weights::Stored(matrix) => Some(matrix),
                Weights::Quantized(_) => None,
            })
            .collect();
        let parts = if let Some(stored) = stored {
            vec![Part {
                place: Place::Act(self.stored(&stored)?),
                outputs,
                inputs,
                column: 0,
            }]
        } else {
            let mut column = 0;
            let mut parts = Vec::new();
            for linear in linears {
                parts.push(Part {
                    place: self.matrix(&linear.weight)?,
                    outputs: linear.weight.rows(),
                    inputs,
                    column,
                });
                column += linear.weight.rows();
            }
            parts
        };
        let bias: Vec<f32> = linears
            .iter()
            .filter_map(|linear| linear.bias.as_deref())
            .flatten()
            .copied()
            .collect();
        let bias = if bias.is_empty() {
            Address::NONE
        } else {
            assert_eq!(bias.len(), outputs, "all of them have a bias or none");
            self.vector(&bias)?
        };
        Ok(Products {
            parts,
            outputs,
            bias,
        })
    }

    fn matrix(&mut self, weights: &Weights) -> Result<Place, DeviceError> {
        let matrix = match weights {
            Weights::Stored(matrix) => return Ok(Place::Act(self.stored(&[matrix])?)),
            Weights::Quantized(matrix) => matrix,
        };
        let (scales, minima) = matrix.numbers();
        let minima = if minima.is_empty() {
            Address::NONE
        } else {
            self.bytes(&words(minima))?
        };
        Ok(Place::Quantized {
            kind: matrix.kind(),
            data: self.bytes(matrix.data())?,
            scales: self.bytes(&words(scales))?,
            minima,
        })
    }

    /// Matrices one below the other.
    fn stored(&mut self, matrices: &[&Matrix]) -> Result<Address, DeviceError> {
        let size = |matrix: &Matrix| (matrix.rows * matrix.cols * 2) as u64;
        let all = matrices.iter().map(|matrix| size(matrix)).sum();
        let address = self.device.allocate("weights", all)?;
        let mut at = address;
        for matrix in matrices {
            self.write_act(at, matrix)?;
            at = at.after(size(matrix));
        }
        Ok(address)
    }

    fn write_act(&mut self, to: Address, matrix: &Matrix) -> Result<(), DeviceError> {
        let is_same = matches!(
            (self.act, matrix.dtype),
            (ActType::Bf16, WeightType::Bf16) | (ActType::F16, WeightType::F16)
        );
        if is_same {
            return self.device.write(to, matrix.bytes());
        }
        let mut row = vec![0.0; matrix.cols];
        let mut piece = Vec::with_capacity(PIECE + 2 * matrix.cols);
        let mut written = 0;
        for index in 0..matrix.rows {
            matrix.read_row(index, &mut row);
            piece.extend(
                row.iter()
                    .flat_map(|x| act_bits(self.act, *x).to_le_bytes()),
            );
            if piece.len() >= PIECE || index + 1 == matrix.rows {
                self.device.write(to.after(written), &piece)?;
                written += piece.len() as u64;
                piece.clear();
            }
        }
        Ok(())
    }

    fn vector(&mut self, numbers: &[f32]) -> Result<Address, DeviceError> {
        let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.bytes(&bytes)
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<Address, DeviceError> {
        let address = self.device.allocate("weights", bytes.len() as u64)?;
        self.device.write(address, bytes)?;
        Ok(address)
    }
}

fn words(words: &[u16]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn act_bits(act: ActType, x: f32) -> u16 {
    match act {
        ActType::Bf16 => bf16::from_f32(x).to_bits(),
        ActType::F16 => f16::from_f32(x).to_bits(),
    }
}
