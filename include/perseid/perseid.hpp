// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
/// \file
/// Perseid for C++20: a header-only layer over the C ABI of perseid.h.
///
///   perseid::Context context = perseid::Context::cpu();
///   perseid::Attention attention(context, {.dtype = perseid::f32, .batch = 4, .heads = 8,
///       .q_len = 512, .kv_len = 512, .head_dim = 64, .mask = perseid::causal_bottom_right(),
///       .dropout = 0.1, .backward = true});
///   perseid::Workspace workspace;
///   attention.reserve(workspace);
///   attention.forward(nullptr, {.query = q, .key = k, .value = v, .out = o, .lse = lse,
///                               .seed = 7}, workspace);
///
/// Every failure is thrown as perseid::Error, with the status and the library's sentence. Plans are
/// immutable: any number of threads may execute one at once, each with its own workspace. Executing
/// allocates nothing once the workspace is reserved.
#ifndef PERSEID_PERSEID_HPP_
#define PERSEID_PERSEID_HPP_

#include "perseid/attention.hpp"
#include "perseid/chunks.hpp"
#include "perseid/context.hpp"
#include "perseid/file.hpp"
#include "perseid/log.hpp"
#include "perseid/matmul.hpp"
#include "perseid/perseid.h"
#include "perseid/plan.hpp"
#include "perseid/ragged.hpp"
#include "perseid/sequences.hpp"
#include "perseid/softmax.hpp"
#include "perseid/tensor.hpp"

#endif  // PERSEID_PERSEID_HPP_
