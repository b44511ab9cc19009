// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// The kernels of attention forward that a plan may need, which are compiled together: reading their
// sources takes the compiler as long as a small kernel.
#pragma once

#include "cuda/device/sm90/attention_forward.hpp"
#include "cuda/device/sm90/attention_mend.hpp"
#include "cuda/device/sm90/attention_merge.hpp"
