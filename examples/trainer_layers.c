// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The heavy layers of a trainer in plain C over the C ABI, with the signatures that such trainers
// use: [B, T, C] activations, weights [OC, C], query, key and value side by side in [B, T, 3C],
// gradients that accumulate. main() holds the gradients against finite differences.
#include <math.h>
#include <perseid/perseid.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static perseid_context_t context;  // of the whole process

static void check(perseid_status status) {
  if (status == PERSEID_OK) return;
  fprintf(stderr, "%s\n", perseid_last_error());
  exit(1);
}

static DLTensor floats(const float* data, int ndim, const int64_t* shape, const int64_t* strides) {
  return perseid_tensor(data, kDLFloat, 32, ndim, shape, strides);
}

//! [workspace]
// One workspace for all layers, which run one after another.
static void* workspace(perseid_plan_t plan, perseid_direction direction, size_t* bytes) {
  static void* memory = NULL;
  static size_t capacity = 0;
  check(perseid_plan_workspace_size(plan, direction, bytes));
  if (*bytes > capacity) memory = realloc(memory, capacity = *bytes);
  return memory;
}
//! [workspace]

//! [matmul]
// c[m, n] = a b + bias, or added to c. A plan is made once for each problem and kept.
static void matmul(DLTensor a, DLTensor b, DLTensor c, const float* bias, int accumulate) {
  static struct {
    int64_t m, n, k;
    int bias, accumulate;
    perseid_plan_t plan;
  } plans[32];
  const int64_t m = a.shape[0], n = b.shape[1], k = a.shape[1];
  int i = 0;
  while (plans[i].plan && (plans[i].m != m || plans[i].n != n || plans[i].k != k ||
                           plans[i].bias != !!bias || plans[i].accumulate != accumulate))
    if (++i == 32) abort();  // more different products than this trainer has
  if (!plans[i].plan) {
    const perseid_matmul_desc desc = {sizeof desc, PERSEID_F32,        .m = m,        .n = n,
                                      .k = k,      .beta = accumulate, .bias = !!bias};
    check(perseid_matmul_plan_create(context, &desc, &plans[i].plan));
    plans[i].m = m, plans[i].n = n, plans[i].k = k, plans[i].bias = !!bias;
    plans[i].accumulate = accumulate;
  }
  const DLTensor bias_view = floats(bias, PERSEID_DIMS(n), NULL);
  const perseid_matmul_args args = {
      .struct_size = sizeof args, .a = &a, .b = &b, .c = &c, .bias = bias ? &bias_view : NULL};
  size_t bytes;
  void* memory = workspace(plans[i].plan, PERSEID_FORWARD, &bytes);
  check(perseid_matmul_execute(plans[i].plan, &args, memory, bytes, NULL));
}

static void matmul_forward(float* out, const float* inp, const float* weight, const float* bias,
                           int64_t BT, int64_t C, int64_t OC) {
  matmul(floats(inp, PERSEID_DIMS(BT, C), NULL),
         floats(weight, PERSEID_DIMS(C, OC), PERSEID_STRIDES(1, C)),  // stored as [OC, C]
         floats(out, PERSEID_DIMS(BT, OC), NULL), bias, 0);
}

static void matmul_backward(float* dinp, float* dweight, const float* dout, const float* inp,
                            const float* weight, int64_t BT, int64_t C, int64_t OC) {
  matmul(floats(dout, PERSEID_DIMS(BT, OC), NULL), floats(weight, PERSEID_DIMS(OC, C), NULL),
         floats(dinp, PERSEID_DIMS(BT, C), NULL), NULL, 1);
  matmul(floats(dout, PERSEID_DIMS(OC, BT), PERSEID_STRIDES(1, OC)),  // transposed
         floats(inp, PERSEID_DIMS(BT, C), NULL), floats(dweight, PERSEID_DIMS(OC, C), NULL), NULL,
         1);
}
//! [matmul]

//! [attention]
// Causal attention over qkv [B, T, 3C]; lse [B, NH, T] instead of two [B, NH, T, T] arrays. With
// dqkv, which accumulates: the gradient.
static void attention(float* out, float* lse, const float* qkv, float* dqkv, const float* dout,
                      int64_t B, int64_t T, int64_t C, int64_t NH) {
  static perseid_plan_t plan = NULL;  // this trainer has one shape
  const int all = PERSEID_GRAD_QUERY | PERSEID_GRAD_KEY | PERSEID_GRAD_VALUE;
  const perseid_attention_desc desc = {
      sizeof desc,      PERSEID_F32,        .causal = PERSEID_CAUSAL_TOP_LEFT,
      .batch = B,       .heads = NH,        .q_len = T,
      .kv_len = T,      .head_dim = C / NH, .gradients = all,
      .accumulate = all};
  if (!plan) check(perseid_attention_plan_create(context, &desc, &plan));
  const int64_t shape[] = {B, T, NH, C / NH}, strides[] = {T * 3 * C, 3 * C, C / NH, 1};
  const DLTensor query = floats(qkv, 4, shape, strides), key = floats(qkv + C, 4, shape, strides),
                 value = floats(qkv + 2 * C, 4, shape, strides), o = floats(out, 4, shape, NULL),
                 logs = floats(lse, PERSEID_DIMS(B, NH, T), NULL);
  size_t bytes;
  void* memory = workspace(plan, dqkv ? PERSEID_BACKWARD : PERSEID_FORWARD, &bytes);
  if (!dqkv) {
    const perseid_attention_forward_args args = {sizeof args,     .query = &query, .key = &key,
                                                 .value = &value, .out = &o,       .lse = &logs};
    check(perseid_attention_forward(plan, &args, memory, bytes, NULL));
    return;
  }
  const DLTensor grad_out = floats(dout, 4, shape, NULL), dq = floats(dqkv, 4, shape, strides),
                 dk = floats(dqkv + C, 4, shape, strides),
                 dv = floats(dqkv + 2 * C, 4, shape, strides);
  const perseid_attention_backward_args args = {
      sizeof args,  .query = &query,       .key = &key,       .value = &value, .out = &o,
      .lse = &logs, .grad_out = &grad_out, .grad_query = &dq, .grad_key = &dk, .grad_value = &dv};
  check(perseid_attention_backward(plan, &args, memory, bytes, NULL));
}
//! [attention]

enum { B = 2, T = 8, C = 16, NH = 2 };
static float inp[B * T * C], w[3 * C * C], bias[3 * C], qkv[B * T * 3 * C], out[B * T * C];
static float lse[B * NH * T], dout[B * T * C], dqkv[B * T * 3 * C], dinp[B * T * C], dw[3 * C * C];

static double loss(void) {  // the weighted sum of all outputs, whose gradient is the weights
  matmul_forward(qkv, inp, w, bias, B * T, C, 3 * C);
  attention(out, lse, qkv, NULL, NULL, B, T, C, NH);
  double sum = 0;
  for (int i = 0; i < B * T * C; ++i) sum += (double)out[i] * dout[i];
  return sum;
}

int main(void) {
  check(perseid_context_create(NULL, &context));
  for (int i = 0; i < B * T * C; ++i) inp[i] = sinf((float)i), dout[i] = cosf(3 * (float)i);
  for (int i = 0; i < 3 * C * C; ++i) w[i] = 0.3f * sinf(7 * (float)i);
  printf("loss %.5f\n", loss());
  attention(out, lse, qkv, dqkv, dout, B, T, C, NH);
  matmul_backward(dinp, dw, dqkv, inp, w, B * T, C, 3 * C);
  int wrong = 0;
  for (int i = 0; i < 3 * C * C; i += 97) {
    const float step = 1e-2f, kept = w[i];
    w[i] = kept + step;
    const double more = loss();
    w[i] = kept - step;
    const double slope = (more - loss()) / (2 * step);
    w[i] = kept;
    printf("dw[%3d] = %8.5f, by differences %8.5f\n", i, dw[i], slope);
    wrong += fabs(slope - dw[i]) > 2e-3 * (1 + fabs(slope));
  }
  return wrong ? 1 : 0;
}
