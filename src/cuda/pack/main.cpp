// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// perseid-pack FILE: compiles the common kernels into a kernel pack, on all CPUs. What a pack that
// is there already has is kept. Where there is no NVRTC the pack is empty: kernels are then
// compiled when plans need them.
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

// An entry without an image that says which compiler made the others.
std::string compiler_mark(const Version& version) {
  return concatenate("compiler nvrtc ", version.major, ".", version.minor);
}

std::string make_entries(const Pack& before, const Version& version) {
  std::vector<Variant> variants;
  for (const char* architecture : kPackedArchitectures)
    for (Variant& variant : common_variants(architecture)) variants.push_back(std::move(variant));
  Image none;
  const bool same_compiler = before.find(compiler_mark(version), &none);
  std::vector<std::string> entries(variants.size());
  std::atomic<size_t> next{0}, compiled{0};
  const auto work = [&] {
    for (size_t i = next++; i < variants.size(); i = next++) {
      const std::string key = key_of(variants[i].program, nullptr);
      const std::string report = report_key(variants[i].program);
      Image image, said;
      if (!same_compiler || !before.find(key, &image) || !before.find(report, &said)) {
        const Status status = compile(variants[i].program, &image, &said.code);
        if (!status.ok()) {
          std::fprintf(stderr, "perseid.pack: without %s: %s\n", variants[i].name.c_str(),
                       status.sentence().c_str());
          continue;
        }
        ++compiled;
      }
      entries[i] = write_entry(key, image) + write_entry(report, said);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
    threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  std::string text = write_entry(compiler_mark(version), {});
  for (const std::string& entry : entries) text += entry;
  std::printf("perseid.pack: %zu kernels for %zu architectures, %zu compiled by NVRTC %d.%d\n",
              variants.size(), std::size(kPackedArchitectures), compiled.load(), version.major,
              version.minor);
  return text;
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
  std::string text;
  if (compiler_version(&version).ok()) {
    text = make_entries(Pack(path), version);
  } else {
    std::printf("perseid.pack: empty, as there is no NVRTC; kernels are compiled when needed\n");
  }
  if (write(path, text)) return 0;
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
