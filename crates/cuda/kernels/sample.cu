// From a row of logits to a token, in the order and with the meaning of crates/model/src/sampler.rs. Nothing is sorted: a filter is a place in
// the order (larger weight first, then smaller id), which is found digit by digit of the weight's bits.
//
// Masses are integers, in units of 2^-44 of the best token's: their sums depend on no order, so a row's token depends on no thread
// and on no batch.
#include "common.cuh"

#define THREADS 512
#define SAMPLE_WARPS (THREADS / WARP)
#define DIGITS 1024
#define TOP_MAX 32
#define PROMPT_BIT 0x80000000u

// One row's parameters. The host has the same struct (src/sampling.rs).
struct alignas(8) RowParams {
    u64 seed;
    u64 position;
    float temperature; // Not above 0: the best token.
    float top_p, min_p;
    float presence, frequency, repetition;
    u32 top_k; // 0: off
    u32 slot;
    u32 logprobs; // 0: none; else how many alternatives, plus 1
    u32 is_penalised;
    i32 mask; // Row of the masks, or -1.
    u32 banned, banned_count; // Part of the list of banned tokens.
    u32 unused;
};

// What a row sampled.
struct RowResult {
    u32 token;
    float logprob;
    u32 is_broken; // Logits that are no numbers.
    u32 top_count;
    u32 top[TOP_MAX];
    float top_logprobs[TOP_MAX];
};

// Tokens up to a place in the order: those with larger weights, and of those with just these bits the ones up to an id.
struct Kept {
    u32 bits;
    u32 id;
};

struct Scratch {
    u64 histogram[DIGITS];
    u64 sums[SAMPLE_WARPS];
    double exact[SAMPLE_WARPS];
    Best bests[SAMPLE_WARPS];
    u64 left; // What the digits found so far leave of a target.
    u32 digit;
    u32 found;
    u32 is_broken;
};

DEVICE bool is_kept(Kept kept, u32 bits, u32 id) { return bits > kept.bits || (bits == kept.bits && id <= kept.id); }

// The mass of a weight from 0 to 1.
DEVICE u64 mass_of(u32 bits) { return (u64)(__uint_as_float(bits) * 17592186044416.0f); }

DEVICE u64 block_sum_u64(u64 value, u64* scratch) {
    for (int step = WARP / 2; step > 0; step /= 2) value += __shfl_xor_sync(ALL_LANES, value, step);
    if (threadIdx.x % WARP == 0) scratch[threadIdx.x / WARP] = value;
    __syncthreads();
    value = 0;
    for (u32 warp = 0; warp < SAMPLE_WARPS; ++warp) value += scratch[warp];
    __syncthreads();
    return value;
}

DEVICE u64 mass_kept(const float* weights, u32 vocab, Kept kept, Scratch& scratch) {
    u64 mass = 0;
    for (u32 i = threadIdx.x; i < vocab; i += THREADS) {
        u32 bits = __float_as_uint(weights[i]);
        if (is_kept(kept, bits, i)) mass += mass_of(bits);
    }
    return block_sum_u64(mass, scratch.sums);
}

// This warp's part of the vocabulary, by ids.
DEVICE u32 segment(u32 vocab, u32 warp) {
    u32 size = (vocab + SAMPLE_WARPS - 1) / SAMPLE_WARPS, begin = warp * size;
    return begin < vocab ? begin : vocab;
}

// The first id up to which the kept tokens sum up to `target`, in the order of ids: their masses, or how many have just `bits`. It is
// reached.
template <bool IS_MASS>
DEVICE u32 reach_by_id(const float* weights, u32 vocab, Kept kept, u64 target, Scratch& scratch) {
    u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, begin = segment(vocab, warp), end = segment(vocab, warp + 1);
    u64 sum = 0;
    for (u32 i = begin + lane; i < end; i += WARP) {
        u32 bits = __float_as_uint(weights[i]);
        if (is_kept(kept, bits, i)) sum += IS_MASS ? mass_of(bits) : (u64)(bits == kept.bits);
    }
    for (int step = WARP / 2; step > 0; step /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
    if (lane == 0) scratch.sums[warp] = sum;
    __syncthreads();
    u64 before = 0;
    for (u32 at = 0; at < warp; ++at) before += scratch.sums[at];
    if (before < target && before + sum >= target) {
        for (u32 first = begin; first < end; first += WARP) {
            u32 i = first + lane, bits = i < end ? __float_as_uint(weights[i]) : 0;
            u64 own = i < end && is_kept(kept, bits, i) ? (IS_MASS ? mass_of(bits) : (u64)(bits == kept.bits)) : 0, upto = own;
            for (int step = 1; step < WARP; step *= 2) {
                u64 other = __shfl_up_sync(ALL_LANES, upto, step);
                if (lane >= (u32)step) upto += other;
            }
            if (own > 0 && before + upto >= target && before + upto - own < target) scratch.found = i;
            before += __shfl_sync(ALL_LANES, upto, WARP - 1);
            if (before >= target) break;
        }
    }
    __syncthreads();
    u32 found = scratch.found;
    __syncthreads();
    return found;
}

// Finds the digit in which the sum over digits from the highest on reaches `scratch.left`, takes what lies above from it, and says whether
// there is one. The histogram is complete.
DEVICE bool reach_digit(Scratch& scratch) {
    if (threadIdx.x < WARP) {
        u32 lane = threadIdx.x, each = DIGITS / WARP, highest = DIGITS - 1 - lane * each;
        u64 sum = 0, left = scratch.left;
        for (u32 at = 0; at < each; ++at) sum += scratch.histogram[highest - at];
        u64 upto = sum;
        for (int step = 1; step < WARP; step *= 2) {
            u64 other = __shfl_up_sync(ALL_LANES, upto, step);
            if (lane >= (u32)step) upto += other;
        }
        u64 before = upto - sum;
        if (lane == WARP - 1 && upto < left) scratch.digit = DIGITS;
        __syncwarp();
        if (before < left && upto >= left) {
            u32 digit = highest;
            while (before + scratch.histogram[digit] < left) before += scratch.histogram[digit--];
            scratch.digit = digit;
            scratch.left = left - before;
        }
    }
    __syncthreads();
    return scratch.digit < DIGITS;
}

// The shortest beginning of the kept tokens whose masses, or whose number, reach `target` (at least 1); all of them where none does.
template <bool IS_MASS>
DEVICE Kept select(const float* weights, u32 vocab, Kept kept, u64 target, Scratch& scratch) {
    u32 prefix = 0;
    if (threadIdx.x == 0) scratch.left = target;
    // Bits 20 to 31, of which 1 is 0x3f8; then ten bits twice.
    for (int shift = 20; shift >= 0; shift -= 10) {
        for (u32 digit = threadIdx.x; digit < DIGITS; digit += THREADS) scratch.histogram[digit] = 0;
        __syncthreads();
        for (u32 i = threadIdx.x; i < vocab; i += THREADS) {
            u32 bits = __float_as_uint(weights[i]);
            if (!is_kept(kept, bits, i) || (shift < 20 && bits >> (shift + 10) != prefix)) continue;
            atomicAdd(&scratch.histogram[bits >> shift & (DIGITS - 1)], IS_MASS ? mass_of(bits) : 1ull);
        }
        __syncthreads();
        if (!reach_digit(scratch)) return kept;
        prefix = prefix << 10 | scratch.digit;
    }
    u64 left = scratch.left;
    __syncthreads();
    Kept ties = {prefix, prefix == kept.bits ? kept.id : 0xffffffffu};
    u64 each = IS_MASS ? mass_of(prefix) : 1;
    ties.id = reach_by_id<false>(weights, vocab, ties, (left + each - 1) / each, scratch);
    return ties;
}

DEVICE u32 multiply_high(u32 a, u32 b) { return (u32)((u64)a * b >> 32); }

// Philox4x32-10: a number from 0 to 1 for a seed and a position, with 53 random bits.
DEVICE double uniform(u64 seed, u64 position) {
    u32 c0 = (u32)position, c1 = (u32)(position >> 32), c2 = 0, c3 = 0, k0 = (u32)seed, k1 = (u32)(seed >> 32);
    for (int round = 0; round < 10; ++round) {
        if (round > 0) k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
        u32 high0 = multiply_high(0xD2511F53u, c0), low0 = 0xD2511F53u * c0, high1 = multiply_high(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
        c0 = high1 ^ c1 ^ k0, c1 = low1, c2 = high0 ^ c3 ^ k1, c3 = low0;
    }
    return (double)(((u64)c0 << 32 | c1) >> 11) / 9007199254740992.0;
}

// The filters and the draw. `weights` (vocabulary): the best has 1.
DEVICE u32 draw(const float* weights, u32 vocab, const RowParams& params, Scratch& scratch) {
    Kept kept = {1, 0xffffffffu}; // Whatever is above 0.
    if (params.top_k > 0) kept = select<false>(weights, vocab, kept, params.top_k, scratch);
    if (params.top_p < 1.0f) {
        u64 wanted = (u64)ceil((double)params.top_p * (double)mass_kept(weights, vocab, kept, scratch));
        kept = select<true>(weights, vocab, kept, wanted > 0 ? wanted : 1, scratch);
    }
    u32 least = __float_as_uint(params.min_p);
    if (params.min_p > 0.0f && least > kept.bits) kept.bits = least, kept.id = 0xffffffffu;
    u64 total = mass_kept(weights, vocab, kept, scratch);
    u64 target = (u64)(uniform(params.seed, params.position) * (double)total) + 1;
    if (target > total) target = total;
    if (params.top_k == 0 && params.top_p >= 1.0f) return reach_by_id<true>(weights, vocab, kept, target, scratch);
    return select<true>(weights, vocab, kept, target, scratch).id;
}

// log of the sum of exp(logit), and the best alternatives, from logits as they came.
DEVICE double explain(const float* logits, u32 vocab, Best best, u32 count, RowResult& result, Scratch& scratch) {
    double sum = 0.0;
    for (u32 i = threadIdx.x; i < vocab; i += THREADS) sum += (double)expf(logits[i] - best.value);
    for (int step = WARP / 2; step > 0; step /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
    if (threadIdx.x % WARP == 0) scratch.exact[threadIdx.x / WARP] = sum;
    __syncthreads();
    sum = 0.0;
    for (u32 warp = 0; warp < SAMPLE_WARPS; ++warp) sum += scratch.exact[warp];
    double log_sum = (double)best.value + log(sum);
    count = count < TOP_MAX ? count : TOP_MAX;
    count = count < vocab ? count : vocab;
    for (u32 rank = 0; rank < count; ++rank) {
        if (threadIdx.x == 0) result.top[rank] = best.index, result.top_logprobs[rank] = (float)((double)best.value - log_sum);
        Best last = best, next = {MINUS_INFINITY, 0xffffffffu};
        for (u32 i = threadIdx.x; i < vocab; i += THREADS) {
            Best own = {logits[i], i};
            bool is_after = own.value < last.value || (own.value == last.value && i > last.index);
            if (is_after) next = better(next, own);
        }
        best = block_best(next, scratch.bests);
    }
    if (threadIdx.x == 0) result.top_count = count;
    return log_sum;
}

// The logits after penalties and masks into `weights`; returns the best.
DEVICE Best adjust(const float* logits, float* weights, u32 vocab, const RowParams& params, const u32* counts, const u32* mask, u32 mask_words,
                   const u32* banned, Scratch& scratch) {
    for (u32 i = threadIdx.x; i < vocab; i += THREADS) {
        float logit = logits[i];
        u32 count = params.is_penalised ? counts[i] : 0;
        if (count) {
            logit = logit > 0.0f ? logit / params.repetition : logit * params.repetition;
            u32 outputs = count & ~PROMPT_BIT;
            if (outputs) logit -= params.presence + params.frequency * (float)outputs;
        }
        if (mask && (i / 32 >= mask_words || !(mask[i / 32] >> i % 32 & 1))) logit = MINUS_INFINITY;
        weights[i] = logit;
    }
    __syncthreads();
    for (u32 at = threadIdx.x; at < params.banned_count; at += THREADS)
        if (banned[params.banned + at] < vocab) weights[banned[params.banned + at]] = MINUS_INFINITY;
    __syncthreads();
    Best best = {MINUS_INFINITY, 0xffffffffu};
    for (u32 i = threadIdx.x; i < vocab; i += THREADS) {
        Best own = {weights[i], i};
        if (!(own.value <= 3.402823466e38f)) scratch.is_broken = 1; // No number, or infinitely large.
        best = better(best, own);
    }
    return block_best(best, scratch.bests);
}

// Grid: (rows), 512 threads each.
//   logits       (rows, vocab) f32
//   weights      (rows, vocab) f32, overwritten
//   params       (rows)
//   counts       (slots, vocab): PROMPT_BIT, and how often the token was put out
//   masks        (masked rows, mask_words): bit i % 32 of word i / 32 says whether token i may come
//   banned       tokens that may not come
//   last_tokens  (slots)
//   results      (rows)
KERNEL sample(const float* logits, float* weights, const RowParams* params, u32* counts, const u32* masks, const u32* banned, u32* last_tokens,
              RowResult* results, u32 vocab, u32 mask_words) {
    SHARED Scratch scratch;
    RowParams row = params[blockIdx.x];
    RowResult& result = results[blockIdx.x];
    if (row.slot == 0xffffffffu) return; // A row that only fills the batch up.
    logits += (u64)blockIdx.x * vocab;
    weights += (u64)blockIdx.x * vocab;
    counts += (u64)row.slot * vocab;
    if (threadIdx.x == 0) scratch.is_broken = 0;
    __syncthreads();
    Best raw = {MINUS_INFINITY, 0xffffffffu};
    for (u32 i = threadIdx.x; i < vocab; i += THREADS) {
        Best own = {logits[i], i};
        if (!(own.value <= 3.402823466e38f)) scratch.is_broken = 1; // No number, or infinitely large.
        raw = better(raw, own);
    }
    raw = block_best(raw, scratch.bests);
    if (threadIdx.x == 0) result.top_count = 0, result.logprob = 0.0f;
    double log_sum = row.logprobs ? explain(logits, vocab, raw, row.logprobs - 1, result, scratch) : 0.0;
    const u32* mask = row.mask < 0 ? nullptr : masks + (u64)row.mask * mask_words;
    Best best = adjust(logits, weights, vocab, row, counts, mask, mask_words, banned, scratch);
    u32 token = best.index;
    bool is_broken = scratch.is_broken;
    if (!is_broken && row.temperature > 0.0f && best.value > MINUS_INFINITY) {
        float scale = 1.0f / row.temperature;
        for (u32 i = threadIdx.x; i < vocab; i += THREADS) weights[i] = expf((weights[i] - best.value) * scale);
        __syncthreads();
        token = draw(weights, vocab, row, scratch);
    }
    if (threadIdx.x == 0) {
        if (token >= vocab) token = 0;
        result.token = token;
        result.is_broken = is_broken;
        if (row.logprobs) result.logprob = (float)((double)logits[token] - log_sum);
        last_tokens[row.slot] = token;
        if (row.is_penalised) counts[token] += 1;
    }
}

// One block: counts a sequence's tokens so far anew, prompt and output.
//   counts  (vocab) of its slot
//   tokens  prompt, then output
KERNEL count_tokens(u32* counts, const u32* tokens, u32 prompt, u32 output, u32 vocab) {
    for (u32 i = threadIdx.x; i < vocab; i += blockDim.x) counts[i] = 0;
    __syncthreads();
    for (u32 at = threadIdx.x; at < prompt + output; at += blockDim.x) {
        if (tokens[at] >= vocab) continue;
        if (at < prompt) atomicOr(&counts[tokens[at]], PROMPT_BIT);
        else atomicAdd(&counts[tokens[at]], 1u);
    }
}
