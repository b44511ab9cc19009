// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// FlashAttention-3's forward for bf16 on sm_90a behind a plain C function, to be timed beside this
// library's by flash_attention_3.py, without PyTorch's extension and its hours of building. It
// calls the kernel template of that project (https://github.com/Dao-AILab/flash-attention, folder
// hopper), which CUTLASS has to lie beside, as that project's own launcher does: the tile counter
// is cleared before each launch. One kernel takes nvcc about two minutes:
//
//   nvcc -std=c++17 -O3 -arch=sm_90a -shared -Xcompiler -fPIC --use_fast_math -DNDEBUG \
//     --expt-relaxed-constexpr --expt-extended-lambda -DCUTLASS_ENABLE_GDC_FOR_SM90 \
//     -I flash-attention/hopper -I cutlass/include -D DIM=128 -D CAUSAL=true -D WINDOW=false \
//     bench/peers/flash_attention_3.cu -lcuda -o flash_attention_3_128_causal.so
//
// Kernels with a window are called flash_attention_3_DIM_window.so (CAUSAL=false, WINDOW=true): a
// query sees its own key and so many before it.
#include <cmath>

#include "flash_fwd_launch_template.h"

// Whether clusters of two blocks share keys, which that project does without a mask from dim 128.
constexpr int kCluster = DIM >= 128 && !CAUSAL && !WINDOW ? 2 : 1;

// Tensors are [batch, length, heads, DIM], lse [batch, heads, length]; `counter` is one int32 on
// the device, `window` the keys before a query's own that it sees. Returns CUDA's error code.
extern "C" int flash_attention_3(void* query, void* key, void* value, void* out, float* lse,
                                 int batch, int length, int heads, int multiprocessors, int window,
                                 int* counter, void* stream) {
  Flash_fwd_params p{};
  const int64_t row = int64_t{heads} * DIM;
  p.q_ptr = query;
  p.k_ptr = key;
  p.v_ptr = value;
  p.o_ptr = out;
  p.softmax_lse_ptr = lse;
  p.q_batch_stride = p.k_batch_stride = p.v_batch_stride = p.o_batch_stride = row * length;
  p.q_row_stride = p.k_row_stride = p.v_row_stride = p.o_row_stride = row;
  p.q_head_stride = p.k_head_stride = p.v_head_stride = p.o_head_stride = DIM;
  p.v_dim_stride = 1;
  p.b = p.b_k = batch;
  p.h = p.h_k = heads;
  p.seqlen_q = p.seqlen_k = length;
  p.seqlen_q_rounded = p.seqlen_k_rounded = (length + 127) / 128 * 128;
  p.d = p.dv = p.d_rounded = p.dv_rounded = DIM;
  p.scale_softmax = 1 / std::sqrt(static_cast<float>(DIM));
  p.p_dropout = p.rp_dropout = 1;
  p.p_dropout_in_uint8_t = 255;
  p.window_size_left = WINDOW ? window : length - 1;
  p.window_size_right = CAUSAL || WINDOW ? 0 : length - 1;
  p.is_bf16 = true;
  p.is_causal = CAUSAL;
  p.is_local = WINDOW;
  p.num_splits = 1;
  p.arch = 90;
  p.num_sm = multiprocessors;
  p.tile_count_semaphore = counter;
  const auto on = static_cast<cudaStream_t>(stream);
  if (const cudaError_t failed = cudaMemsetAsync(counter, 0, sizeof(int), on)) return failed;
  constexpr bool kLocal = WINDOW, kSoftcap = false, kVarlen = false, kPaged = false,
                 kAppend = false, kQv = false, kPacked = false, kSplit = false, kColumns = false;
  run_flash_fwd<90, DIM, DIM, kCluster, cutlass::bfloat16_t, cutlass::bfloat16_t, CAUSAL, kLocal,
                kSoftcap, kVarlen, kPaged, kAppend, kQv, kPacked, kSplit, kColumns>(p, on);
  return cudaGetLastError();
}
