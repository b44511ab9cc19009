// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// perseid-pack FILE: compiles the common kernels into a kernel pack, on all CPUs, and keeps what
// the assembler said of them in FILE.reports, for the test of their budgets. What a pack that is
// there already has is kept. Where there is no NVRTC the pack is empty: kernels are then compiled
// when plans need them.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include "cuda/pack/variants.hpp"
#include "cuda/runtime/cache.hpp"

namespace perseid::cuda {
namespace {

// An entry of the reports that says which compiler made the others.
std::string compiler_mark(const Version& version) {
  return concatenate("compiler nvrtc ", version.major, ".", version.minor);
}

struct Made {
  std::string pack, reports;
};

Made make(const std::string& path, const Version& version) {
  const Pack before(path), reports(path + ".reports");
  std::vector<Variant> variants;
  for (const char* architecture : kPackedArchitectures)
    for (Variant& variant : common_variants(architecture)) variants.push_back(std::move(variant));
  const std::string mark = compiler_mark(version);
  Image none;
  const bool same_compiler = reports.find(mark, &none);
  std::vector<Made> entries(variants.size());
  std::atomic<size_t> next{0}, compiled{0};
  const auto work = [&] {
    for (size_t i = next++; i < variants.size(); i = next++) {
      const std::string key = key_of(variants[i].program, nullptr);
      Image image, report;
      if (!same_compiler || !before.find(key, &image) || !reports.find(key, &report)) {
        const Status status = compile(variants[i].program, &image, &report.code);
        if (!status.ok()) {
          std::fprintf(stderr, "perseid.pack: without %s: %s\n", variants[i].name.c_str(),
                       status.sentence().c_str());
          continue;
        }
        ++compiled;
      }
      entries[i] = {write_entry(key, image), write_entry(key, report)};
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
    threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  Made made{"", write_entry(mark, {})};
  for (const Made& entry : entries) {
    made.pack += entry.pack;
    made.reports += entry.reports;
  }
  std::printf("perseid.pack: %zu kernels for %zu architectures, %zu compiled by NVRTC %d.%d\n",
              variants.size(), std::size(kPackedArchitectures), compiled.load(), version.major,
              version.minor);
  return made;
}

bool write(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".new";
  std::ofstream file(temporary, std::ios::binary);
  file << text;
  file.close();
  std::error_code failure;
  if (!file.fail()) std::filesystem::rename(temporary, path, failure);
  return !file.fail() && !failure;
}

int build(const std::string& path) {
  Version version;
  Made made;
  if (compiler_version(&version).ok()) {
    made = make(path, version);
  } else {
    std::printf("perseid.pack: empty, as there is no NVRTC; kernels are compiled when needed\n");
  }
  if (write(path, made.pack) && write(path + ".reports", made.reports)) return 0;
  std::fprintf(stderr, "perseid.pack: cannot write %s\n", path.c_str());
  return 1;
}

}  // namespace
}  // namespace perseid::cuda

int main(int argc, char** argv) {
  if (argc == 2) return perseid::cuda::build(argv[1]);
  std::fprintf(stderr, "usage: perseid-pack FILE\n");
  return 2;
}
