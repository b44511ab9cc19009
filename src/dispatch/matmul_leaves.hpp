// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Matmul in canonical order (math/leaf_tree.hpp) by GPU kernels that sum one leaf of the depth in a
// launch, in float32 (float64 of f64), or two neighbours. The second product of a pair takes the
// sums of the first as its c0; then a kernel adds the pairs (cuda/rank_sum.hpp).
#pragma once

#include "dispatch/implementation.hpp"

namespace perseid::internal::dispatch {

using MadeMatmul = std::unique_ptr<Executable<Matmul>>;
using MakeMatmul = Status (*)(const MatmulProblem& problem, const Device& device, MadeMatmul* made);

// The problem of one leaf; without leaves the problem itself.
MatmulProblem leaf_of(MatmulProblem problem);
// Why a problem of several leaves is not made so, as a sentence's end; "" where it is.
std::string refuse_leaf_products(const MatmulProblem& problem);
// The rows of c lie side by side. make_leaf: of the kernels, which sum `at_once` leaves.
Status make_leaf_products(const MatmulProblem& problem, int64_t at_once, const Device& device,
                          MakeMatmul make_leaf, MadeMatmul* made);

// A product in canonical order by kernels whose results TMA stores: any other one is made in the
// workspace and copied. beta is 0.
Status make_stored_by_tma(const MatmulProblem& problem, const Device& device, MakeMatmul make,
                          MadeMatmul* made);

// Leaves that ranks share, of 16 bits, by a product whose operands TMA loads: those that it does
// not take are copied to the workspace. Where leaves are whole steps nothing is copied: the product
// refuses such operands.
bool may_need_copies(const MatmulProblem& problem);
// Why such copies cannot be made, as a sentence's end; "" where they can.
std::string refuse_copies(const MatmulProblem& problem);
Status make_loaded_by_tma(const MatmulProblem& problem, const Device& device, MadeMatmul product,
                          MadeMatmul* made);

}  // namespace perseid::internal::dispatch
