// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// Problems of attention's options beyond one rectangle of scores: query lengths, a window aligned
// bottom-right without causal, caches (starts of keys, indices of batch entries), plans for more
// than their tensors have, bounds of splits. Queries and keys that no result depends on hold NaN.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "harness/problem_text.hpp"

namespace perseid::harness {

inline std::vector<Problem> option_problems(const std::vector<const char*>& texts,
                                            const std::vector<const char*>& dtypes) {
  std::vector<Problem> problems;
  for (const char* text : texts)
    for (const char* dtype : dtypes) {
      nlohmann::json object = nlohmann::json::parse(text);
      object["op"] = "attention";
      object["dtype"] = dtype;
      object["lse"] = true;
      object["values"] = "poison";
      problems.push_back(from_json(object));
    }
  return problems;
}

inline std::vector<const char*> bottom_right_windows() {
  return {R"({"batch":2,"heads":2,"q_len":19,"kv_len":70,"head_dim":24,"backward":true,
              "window":"5,-1","window_bottom_right":true})",
          R"({"batch":2,"heads":2,"q_len":170,"kv_len":301,"head_dim":64,"backward":true,
              "window":"65,3","window_bottom_right":true})",
          R"({"batch":2,"heads":2,"q_len":70,"kv_len":19,"head_dim":24,"backward":true,
              "window":"6,2","window_bottom_right":true})",
          R"({"batch":2,"heads":2,"q_len":70,"kv_len":19,"head_dim":24,"backward":true,
              "window":"-1,3","window_bottom_right":true,"deterministic":true})",
          R"({"batch":3,"q_len":2,"kv_len":600,"head_dim":16,"kv_lens":[600,1,90],
              "window":"0,0","window_bottom_right":true})",
          R"({"batch":3,"heads":2,"q_len":2,"kv_len":2600,"head_dim":128,"kv_lens":[2600,1,1090],
              "window":"1500,-1","window_bottom_right":true})",
          R"({"batch":3,"heads":2,"cu_seqlens_q":[0,5,5,46],"cu_seqlens_kv":[0,40,47,59],
              "head_dim":8,"backward":true,"window":"5,1","window_bottom_right":true})"};
}

inline std::vector<const char*> query_lengths() {
  return {R"({"batch":4,"heads":2,"q_len":70,"kv_len":40,"head_dim":16,"q_lens":[70,0,1,33],
              "backward":true,"grad_lse":true})",
          R"({"batch":3,"heads":2,"q_len":400,"kv_len":290,"head_dim":64,"q_lens":[17,400,129],
              "backward":true,"deterministic":true})",
          R"({"batch":3,"heads":4,"kv_heads":2,"q_len":140,"kv_len":175,"head_dim":128,
              "layout":"bhsd","q_lens":[7,140,64],"kv_lens":[175,3,0],"causal":"bottom-right",
              "backward":true})",
          R"({"batch":3,"heads":4,"kv_heads":2,"q_len":40,"kv_len":75,"head_dim":24,
              "q_lens":[7,40,22],"kv_lens":[75,3,0],"causal":"top-left","backward":true,
              "deterministic":true})",
          R"({"batch":3,"heads":2,"q_len":3,"kv_len":2700,"head_dim":32,"q_lens":[1,0,3],
              "kv_lens":[2700,5,520],"causal":"bottom-right","dropout":0.3})",
          R"({"batch":3,"heads":8,"kv_heads":2,"q_len":4,"kv_len":1300,"head_dim":64,
              "q_lens":[4,2,1]})",
          R"({"batch":3,"heads":2,"cu_seqlens_q":[0,20,20,151],"cu_seqlens_kv":[0,9,17,260],
              "head_dim":64,"q_lens":[13,0,131],"causal":"bottom-right","backward":true})",
          R"({"batch":2,"heads":2,"q_len":33,"kv_len":20,"head_dim":8,"q_lens":[32,4],
              "bias":[1,2,33,20],"visible":[2,1,33,20],"backward":true})",
          R"({"batch":2,"heads":2,"q_len":133,"kv_len":200,"head_dim":64,"q_lens":[132,4],
              "bias":[2,2,133,200],"backward":true})",
          R"({"batch":2,"heads":2,"q_len":133,"kv_len":200,"head_dim":64,"q_lens":[132,4],
              "bias":[1,2,1,200],"window":"20,5","backward":true})",
          R"({"batch":2,"heads":2,"q_len":33,"kv_len":20,"head_dim":8,"q_lens":[0,0],
              "bias":[2,2,33,20],"backward":true})"};
}

inline std::vector<const char*> caches() {
  return {// Starts that fall, rise and repeat; sequences that share keys, and one without keys.
          R"({"batch":5,"heads":2,"cu_seqlens_q":[0,7,8,8,30,61],"kv_starts":[90,0,130,90,17],
              "kv_lens":[60,9,3,64,0],"head_dim":16,"causal":"bottom-right"})",
          R"({"batch":3,"heads":2,"cu_seqlens_q":[0,70,208,301],"kv_starts":[390,200,0],
              "kv_lens":[260,300,364],"head_dim":64,"causal":"top-left"})",
          R"({"batch":3,"heads":4,"kv_heads":1,"cu_seqlens_q":[0,1,2,3],"kv_starts":[800,100,0],
              "kv_lens":[1600,2700,90],"head_dim":32})",
          R"({"batch":4,"heads":2,"q_len":121,"kv_len":140,"head_dim":64,"kv_batch":6,
              "kv_index":[5,0,5,2],"causal":"bottom-right"})",
          R"({"batch":4,"heads":2,"q_len":21,"kv_len":40,"head_dim":16,"kv_batch":2,
              "kv_index":[1,0,1,1],"window":"4,3"})",
          R"({"batch":3,"heads":4,"kv_heads":2,"q_len":1,"kv_len":2900,"head_dim":128,
              "kv_batch":4,"kv_index":[3,1,3],"kv_lens":[2900,14,520],"layout":"bhsd",
              "dropout":0.2})"};
}

inline std::vector<const char*> plans_for_more() {
  return {R"({"batch":2,"heads":2,"q_len":1,"kv_len":90,"max_kv_len":4000,"head_dim":16,
              "causal":"bottom-right"})",
          R"({"batch":2,"heads":8,"kv_heads":2,"q_len":2,"kv_len":2090,"max_kv_len":9000,
              "head_dim":128,"max_q_len":4})",
          R"({"batch":2,"heads":2,"q_len":120,"max_q_len":640,"kv_len":131,"max_kv_len":1000,
              "head_dim":64,"causal":"bottom-right"})",
          R"({"batch":2,"heads":2,"q_len":20,"max_q_len":64,"kv_len":31,"max_kv_len":100,
              "head_dim":16,"bias":[1,2,20,31],"visible":[1,1,20,1],"window":"9,3"})",
          R"({"batch":2,"heads":2,"q_len":20,"max_q_len":64,"kv_len":31,"bias":[1,2,1,31],
              "max_kv_len":31,"head_dim":16,"window":"9,3","window_bottom_right":true})",
          R"({"batch":2,"heads":2,"q_len":50,"max_q_len":1,"kv_len":0,"max_kv_len":310,
              "head_dim":64,"causal":"bottom-right"})",
          R"({"batch":2,"heads":2,"cu_seqlens_q":[0,20,33],"cu_seqlens_kv":[0,5,60],
              "max_q_len":40,"max_kv_len":90,"head_dim":16,"causal":"top-left"})",
          // With gradients: where the plan splits keys and heads and the execution does not, and
          // the other way round.
          R"({"batch":1,"heads":4,"kv_heads":2,"q_len":20,"max_q_len":100,"kv_len":300,
              "max_kv_len":1300,"head_dim":16,"causal":"bottom-right","backward":true})",
          R"({"batch":2,"heads":4,"kv_heads":1,"q_len":130,"max_q_len":400,"kv_len":170,
              "max_kv_len":900,"head_dim":64,"backward":true,"grad_lse":true})",
          R"({"batch":2,"heads":2,"q_len":130,"max_q_len":400,"kv_len":170,"max_kv_len":900,
              "head_dim":128,"causal":"top-left","backward":true,"deterministic":true})",
          R"({"batch":2,"heads":2,"q_len":20,"max_q_len":2000,"kv_len":31,"max_kv_len":1000,
              "head_dim":16,"bias":[1,2,20,31],"visible":[1,1,20,1],"window":"9,3",
              "backward":true})",
          R"({"batch":3,"heads":2,"q_len":150,"max_q_len":640,"kv_len":210,"bias":[1,2,1,210],
              "max_kv_len":500,"head_dim":64,"dropout":0.2,"backward":true})",
          R"({"batch":2,"heads":2,"q_len":70,"max_q_len":90,"kv_len":0,"max_kv_len":310,
              "head_dim":64,"backward":true})",
          R"({"batch":2,"heads":2,"cu_seqlens_q":[0,20,83],"cu_seqlens_kv":[0,5,160],
              "max_q_len":140,"max_kv_len":290,"head_dim":64,"causal":"top-left",
              "backward":true})",
          // Fewer keys in more splits than those of the plan.
          R"({"batch":1,"heads":2,"q_len":1,"kv_len":5120,"max_kv_len":5130,"head_dim":64,
              "num_splits":10})"};
}

// More than 16 bits count.
inline std::vector<const char*> many_entries_and_heads() {
  return {R"({"batch":66000,"q_len":2,"kv_len":2,"head_dim":4,"causal":"bottom-right",
              "backward":true})",
          R"({"heads":66000,"kv_heads":33000,"q_len":3,"kv_len":2,"head_dim":8,
              "bias":[1,66000,1,2],"dropout":0.2,"backward":true})"};
}

inline std::vector<const char*> bounds_of_splits() {
  return {R"({"batch":2,"heads":4,"kv_heads":2,"q_len":2,"kv_len":3100,"head_dim":16,
              "num_splits":1})",
          R"({"batch":2,"heads":4,"kv_heads":2,"q_len":70,"kv_len":700,"head_dim":64,
              "num_splits":1,"backward":true})",
          R"({"batch":1,"heads":4,"kv_heads":2,"q_len":70,"kv_len":700,"head_dim":64,
              "num_splits":3,"backward":true})",
          R"({"batch":2,"heads":4,"kv_heads":2,"q_len":2,"kv_len":3100,"head_dim":64,
              "num_splits":2})",
          R"({"batch":2,"heads":4,"kv_heads":2,"q_len":2,"kv_len":3100,"head_dim":16,
              "num_splits":3})",
          R"({"batch":2,"heads":4,"kv_heads":2,"q_len":2,"kv_len":3100,"head_dim":64,
              "num_splits":100})"};
}

}  // namespace perseid::harness
