//! One pass of a batch through the network: which kernels run on what, in what order.

use weir_model::config::ModelConfig;
use weir_model::quant::{PANEL, QuantKind};

use crate::buffers::{Buffers, PART_HEADS, WRITE_OUT_ROWS, splits};
use crate::device::{
    Address, Arguments, Device, DeviceError, Execute, Launch, Product, Properties, ResultType,
};
use crate::kernels::Kernel;
use crate::metadata::{Metadata, StepShape};
use crate::upload::{DeviceWeights, LayerWeights, Part, Place, Products};

/// Threads of kernels that go over a row.
const ROW_THREADS: usize = 256;
/// Warps of the kernel that finishes queries, keys and values: heads of one block.
const QKV_HEADS: usize = 4;
/// Threads of four warps.
const FOUR_WARPS: usize = 128;
/// Rows up to which a product with quantized weights only reads.
const GEMV_ROWS: usize = 8;

/// A device that only decides how it would multiply.
pub(crate) struct Preparing<'a, D>(pub &'a mut D);

impl<D: Device> Execute for Preparing<'_, D> {
    fn properties(&self) -> Properties {
        self.0.properties()
    }

    fn launch(&mut self, _: &Launch) -> Result<(), DeviceError> {
        Ok(())
    }

    fn multiply(&mut self, product: &Product) -> Result<(), DeviceError> {
        self.0.prepare(product)
    }
}

/// What a pass works with.
pub(crate) struct Pass<'a, E> {
    pub device: &'a mut E,
    pub config: &'a ModelConfig,
    pub weights: &'a DeviceWeights,
    pub buffers: &'a Buffers,
    pub metadata: &'a Metadata,
    pub block_tokens: usize,
}

impl<E: Execute> Pass<'_, E> {
    /// From tokens to the normalised last rows of those that sample.
    pub(crate) fn run(&mut self, shape: &StepShape) -> Result<(), DeviceError> {
        self.embed(shape.tokens)?;
        let mut bias = None;
        for (index, layer) in self.weights.layers.iter().enumerate() {
            let buffers = self.buffers;
            self.normalise(
                layer.attention_norm,
                bias,
                None,
                (shape.tokens, buffers.normed),
            )?;
            self.attention(layer, index, shape)?;
            let after = Some(layer.o.bias);
            self.normalise(layer.mlp_norm, after, None, (shape.tokens, buffers.normed))?;
            self.feed_forward(layer, shape.tokens)?;
            bias = Some(layer.down.bias);
        }
        let rows = self.metadata.on_device(self.metadata.at.sampling);
        let out = (shape.sampling, self.buffers.last);
        self.normalise(self.weights.final_norm, bias, Some(rows), out)
    }

    /// Logits (rows, vocabulary) of some of the last rows.
    pub(crate) fn logits(
        &mut self,
        first: usize,
        rows: usize,
        out: Address,
    ) -> Result<(), DeviceError> {
        let x = self
            .buffers
            .last
            .after((first * self.config.hidden_size * 2) as u64);
        self.multiply(&self.weights.head, rows, x, (out, ResultType::F32))
    }

    fn launch(
        &mut self,
        kernel: Kernel,
        grid: [usize; 3],
        threads: usize,
        arguments: Arguments,
    ) -> Result<(), DeviceError> {
        if grid.contains(&0) {
            return Ok(());
        }
        self.device.launch(&Launch {
            kernel,
            grid,
            threads,
            arguments,
        })
    }

    fn embed(&mut self, tokens: usize) -> Result<(), DeviceError> {
        let at = Arguments::new()
            .at(self.metadata.on_device(self.metadata.at.tokens))
            .at(self.buffers.last_tokens);
        let (kernel, at) = match self.weights.embedding {
            Place::Act(table) => (Kernel::Embed, at.at(table)),
            Place::Quantized {
                kind: QuantKind::Int8,
                data,
                scales,
                ..
            } => (Kernel::EmbedInt8, at.at(data).at(scales)),
            Place::Quantized {
                kind: QuantKind::Int4,
                data,
                scales,
                minima,
            } => (Kernel::EmbedInt4, at.at(data).at(scales).at(minima)),
        };
        let arguments = at.at(self.buffers.x).int(self.config.hidden_size);
        self.launch(kernel, [tokens, 1, 1], ROW_THREADS, arguments)
    }

    /// Adds what the layer before made, where there is one, with its bias.
    fn normalise(
        &mut self,
        weight: Address,
        added: Option<Address>,
        rows: Option<Address>,
        (count, out): (usize, Address),
    ) -> Result<(), DeviceError> {
        let arguments = Arguments::new()
            .at(self.buffers.x)
            .at(added.map_or(Address::NONE, |_| self.buffers.delta))
            .at(added.unwrap_or(Address::NONE))
            .at(weight)
            .at(rows.unwrap_or(Address::NONE))
            .at(out)
            .int(self.config.hidden_size)
            .float(self.config.rms_norm_eps);
        self.launch(Kernel::RmsNorm, [count, 1, 1], ROW_THREADS, arguments)
    }

    fn attention(
        &mut self,
        layer: &LayerWeights,
        index: usize,
        shape: &StepShape,
    ) -> Result<(), DeviceError> {
        let (config, buffers, at) = (self.config, self.buffers, self.metadata.at);
        let qkv = (buffers.qkv, ResultType::F32);
        self.multiply(&layer.qkv, shape.tokens, buffers.normed, qkv)?;
        let cache = buffers.caches[index];
        let positions = self.metadata.on_device(at.positions);
        let arguments = Arguments::new()
            .at(buffers.qkv)
            .at(layer.qkv.bias)
            .at(layer.qk_norm.0)
            .at(layer.qk_norm.1)
            .at(buffers.angles)
            .at(positions)
            .at(self.metadata.on_device(at.places))
            .at(buffers.q)
            .at(cache.keys)
            .at(cache.values)
            .at(cache.key_scales)
            .at(cache.value_scales)
            .int(config.head_count)
            .int(config.kv_head_count)
            .int(self.block_tokens)
            .float(config.rms_norm_eps);
        let heads = config.head_count + 2 * config.kv_head_count;
        let grid = [shape.tokens, heads.div_ceil(QKV_HEADS), 1];
        self.launch(Kernel::QkvFinish, grid, FOUR_WARPS, arguments)?;
        self.decode(index, shape.decodes)?;
        let arguments = Arguments::new()
            .at(self.metadata.on_device(at.tiles))
            .at(self.metadata.tables.address)
            .at(positions)
            .at(buffers.q);
        let arguments = self.cache_arguments(arguments, index, buffers.attended);
        let grid = [shape.tiles, config.kv_head_count, 1];
        self.launch(Kernel::PagedPrefill, grid, FOUR_WARPS, arguments)?;
        let delta = (buffers.delta, ResultType::F32);
        self.multiply(&layer.o, shape.tokens, buffers.attended, delta)
    }

    /// Attention of the rows with one token.
    fn decode(&mut self, index: usize, rows: usize) -> Result<(), DeviceError> {
        let (config, buffers, at) = (self.config, self.buffers, self.metadata.at);
        let multiprocessors = self.device.properties().multiprocessors as usize;
        let splits = splits(config, multiprocessors, rows.max(1));
        let lengths = self.metadata.on_device(at.lengths);
        let arguments = Arguments::new()
            .at(self.metadata.on_device(at.starts))
            .at(lengths)
            .at(self.metadata.tables.address)
            .at(buffers.q);
        let arguments = self.cache_arguments(arguments, index, buffers.parts);
        let parts = config.group_size().div_ceil(PART_HEADS);
        let grid = [config.kv_head_count * parts, rows, splits];
        self.launch(Kernel::PagedDecode, grid, FOUR_WARPS, arguments)?;
        let arguments = Arguments::new()
            .at(buffers.parts)
            .at(lengths)
            .at(buffers.attended)
            .int(splits);
        let grid = [config.head_count, rows, 1];
        self.launch(Kernel::Combine, grid, FOUR_WARPS, arguments)
    }

    fn cache_arguments(&self, arguments: Arguments, index: usize, out: Address) -> Arguments {
        let (config, cache) = (self.config, self.buffers.caches[index]);
        let scale = std::f32::consts::LOG2_E / (config.head_dim as f32).sqrt();
        let window = config.sliding_window[index].unwrap_or(0);
        arguments
            .at(cache.keys)
            .at(cache.values)
            .at(cache.key_scales)
            .at(cache.value_scales)
            .at(out)
            .int(config.group_size())
            .int(config.kv_head_count)
            .int(self.block_tokens)
            .float(scale)
            .int(window as usize)
    }

    fn feed_forward(&mut self, layer: &LayerWeights, tokens: usize) -> Result<(), DeviceError> {
        let (buffers, inner) = (self.buffers, self.config.intermediate_size);
        let gate_up = (buffers.gate_up, ResultType::Act);
        self.multiply(&layer.gate_up, tokens, buffers.normed, gate_up)?;
        let arguments = Arguments::new()
            .at(buffers.gate_up)
            .at(layer.gate_up.bias)
            .at(buffers.inner)
            .int(inner);
        let grid = [(inner / 2).div_ceil(ROW_THREADS), tokens, 1];
        self.launch(Kernel::Swiglu, grid, ROW_THREADS, arguments)?;
        let delta = (buffers.delta, ResultType::F32);
        self.multiply(&layer.down, tokens, buffers.inner, delta)
    }

    fn multiply(
        &mut self,
        products: &Products,
        rows: usize,
        x: Address,
        (out, result): (Address, ResultType),
    ) -> Result<(), DeviceError> {
        let size = if result == ResultType::F32 { 4 } else { 2 };
        for part in &products.parts {
            let product = Product {
                rows,
                outputs: part.outputs,
                inputs: part.inputs,
                x,
                weights: Address::NONE,
                out: out.after((part.column * size) as u64),
                stride: products.outputs,
                result,
            };
            self.multiply_part(part, product)?;
        }
        Ok(())
    }

    fn multiply_part(&mut self, part: &Part, product: Product) -> Result<(), DeviceError> {
        let (kind, data, scales, minima) = match part.place {
            Place::Act(weights) => return self.device.multiply(&Product { weights, ..product }),
            Place::Quantized {
                kind,
                data,
                scales,
                minima,
            } => (kind, data, scales, minima),
        };
        let numbers = Arguments::new().at(data).at(scales).at(minima);
        let panels = part.outputs.div_ceil(PANEL);
        let is_layer = part.outputs != self.config.vocab_size;
        if product.rows >= WRITE_OUT_ROWS && is_layer {
            let kernel = match kind {
                QuantKind::Int8 => Kernel::Int8Dequantize,
                QuantKind::Int4 => Kernel::Int4Dequantize,
            };
            let weights = self.buffers.written_out;
            let arguments = numbers.at(weights).int(part.inputs);
            self.launch(kernel, [part.outputs, 1, 1], ROW_THREADS, arguments)?;
            return self.device.multiply(&Product { weights, ..product });
        }
        let arguments = Arguments::new()
            .at(product.x)
            .at(data)
            .at(scales)
            .at(minima)
            .at(product.out)
            .int(product.rows)
            .int(product.outputs)
            .int(product.inputs)
            .int(product.stride)
            .int(usize::from(product.result == ResultType::Act));
        if product.rows <= GEMV_ROWS {
            let kernel = gemv(kind, product.rows);
            return self.launch(kernel, [panels, 1, 1], 2 * FOUR_WARPS, arguments);
        }
        let kernel = match kind {
            QuantKind::Int8 => Kernel::Int8Gemm,
            QuantKind::Int4 => Kernel::Int4Gemm,
        };
        let grid = [panels.div_ceil(4), product.rows.div_ceil(64), 1];
        self.launch(kernel, grid, FOUR_WARPS, arguments)
    }
}

/// The kernel that multiplies so few rows.
fn gemv(kind: QuantKind, rows: usize) -> Kernel {
    match (kind, rows) {
        (QuantKind::Int8, 0..=1) => Kernel::Int8Gemv1,
        (QuantKind::Int8, 2) => Kernel::Int8Gemv2,
        (QuantKind::Int8, 3..=4) => Kernel::Int8Gemv4,
        (QuantKind::Int8, _) => Kernel::Int8Gemv8,
        (QuantKind::Int4, 0..=1) => Kernel::Int4Gemv1,
        (QuantKind::Int4, 2) => Kernel::Int4Gemv2,
        (QuantKind::Int4, 3..=4) => Kernel::Int4Gemv4,
        (QuantKind::Int4, _) => Kernel::Int4Gemv8,
    }
}
