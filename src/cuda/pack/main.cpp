// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// perseid-pack FILE [TEXT...]: compiles the common kernels into a kernel pack, on all CPUs, and
// writes the assembler's reports to FILE.reports, for the test of register budgets. Programs of an
// existing FILE are not compiled again. Without NVRTC the pack is empty, and kernels are compiled
// when plans need them. With TEXT, compiles only programs whose names contain one of the texts,
// such as "backward of attention, causal, bf16": to compare the machine code of a few
// (bench/gpu/same_code.py).
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <fstream>
#include <new>
#include <span>
#include <thread>

#include "cuda/pack/variants.hpp"
#include "cuda/runtime/cache.hpp"

namespace perseid::internal::cuda {
namespace {

constexpr const char* kReports = ".reports";

// The key of the entry in the reports that names the compiler of the others.
std::string compiler_mark(const Version& version) {
  return concatenate("compiler nvrtc ", version.major, ".", version.minor);
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

// Kernels and reports of a file.
struct Source {
  explicit Source(const std::string& path) : kernels(path), reports(path + kReports) {}
  bool find(const std::string& key, Image* image, Image* report) const {
    return kernels.find(key, image) && reports.find(key, report);
  }
  Pack kernels, reports;
};

// Compiles the variants that `next` counts down to, and writes them to `path`.
bool compile_share(const std::string& path, const std::vector<Variant>& variants,
                   std::atomic<size_t>* next) {
  std::string kernels, reports;
  for (size_t left = next->fetch_sub(1); left > 0 && left <= variants.size();
       left = next->fetch_sub(1)) {
    const Variant& variant = variants[left - 1];
    Image image, report{{"report"}, ""};
    const Status status = compile(variant.program, &image, &report.code);
    if (!status.ok()) {
      std::fprintf(stderr, "perseid.pack: without %s: %s\n", variant.name.c_str(),
                   status.sentence().c_str());
      continue;
    }
    const std::string key = key_of(variant.program, nullptr);
    kernels += write_entry(key, image);
    reports += write_entry(key, report);
  }
  return write(path, kernels) && write(path + kReports, reports);
}

// One process per CPU, since threads of one process wait for each other in NVRTC: before 12.3 all
// the time, then in its front end. Process i writes path.i. They draw from the end of the list,
// where attention is: the longest programs first, so that all processes end at about the same time.
bool compile_all(const std::string& path, const std::vector<Variant>& variants, size_t processes) {
  void* const shared = mmap(nullptr, sizeof(std::atomic<size_t>), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return false;
  auto* const next = new (shared) std::atomic<size_t>(variants.size());
  std::vector<pid_t> children;
  for (size_t i = 0; i < processes; ++i) {
    const pid_t child = fork();
    if (child == 0) _exit(compile_share(concatenate(path, ".", i), variants, next) ? 0 : 1);
    if (child > 0) children.push_back(child);
  }
  bool ok = children.size() == processes;
  for (const pid_t child : children) {
    int state = 0;
    ok = waitpid(child, &state, 0) == child && state == 0 && ok;
  }
  munmap(shared, sizeof(std::atomic<size_t>));
  return ok;
}

bool is_wanted(const Variant& variant, std::span<char*> texts) {
  const auto has = [&](const char* text) { return variant.name.find(text) != std::string::npos; };
  return texts.empty() || std::any_of(texts.begin(), texts.end(), has);
}

bool make(const std::string& path, const Version& version, std::span<char*> texts) {
  std::vector<Variant> variants;
  for (const char* architecture : kPackedArchitectures)
    for (Variant& variant : common_variants(architecture))
      if (is_wanted(variant, texts)) variants.push_back(std::move(variant));
  const std::string mark = compiler_mark(version);
  std::deque<Source> sources;
  sources.emplace_back(path);
  Image image, report;
  const bool same_compiler = sources[0].reports.find(mark, &report);
  std::vector<Variant> missing;
  for (const Variant& variant : variants)
    if (!same_compiler || !sources[0].find(key_of(variant.program, nullptr), &image, &report))
      missing.push_back(variant);
  const size_t processes =
      std::min(missing.size(), size_t{std::max(1u, std::thread::hardware_concurrency())});
  if (!compile_all(path, missing, processes)) return false;
  if (!same_compiler) sources.clear();
  for (size_t i = 0; i < processes; ++i) sources.emplace_back(concatenate(path, ".", i));
  std::string kernels, reports = write_entry(mark, {{"compiler"}, ""});
  for (const Variant& variant : variants) {
    const std::string key = key_of(variant.program, nullptr);
    for (const Source& source : sources) {
      if (!source.find(key, &image, &report)) continue;
      kernels += write_entry(key, image);
      reports += write_entry(key, report);
      break;
    }
  }
  const bool ok = write(path, kernels) && write(path + kReports, reports);
  for (size_t i = 0; i < processes; ++i)
    for (const char* end : {"", kReports}) {
      std::error_code ignored;
      std::filesystem::remove(concatenate(path, ".", i, end), ignored);
    }
  std::printf("perseid.pack: %zu programs for %zu architectures, %zu compiled by NVRTC %d.%d\n",
              variants.size(), std::size(kPackedArchitectures), missing.size(), version.major,
              version.minor);
  return ok;
}

bool make_empty(const std::string& path) {
  std::printf("perseid.pack: empty, as there is no NVRTC; kernels are compiled when needed\n");
  return write(path, "") && write(path + kReports, "");
}

int build(const std::string& path, std::span<char*> texts) {
  umask(S_IWGRP | S_IWOTH);  // A pack that others may write is not read.
  Version version;
  if (compiler_version(&version).ok() ? make(path, version, texts) : make_empty(path)) return 0;
  std::fprintf(stderr, "perseid.pack: cannot write %s\n", path.c_str());
  return 1;
}

}  // namespace
}  // namespace perseid::internal::cuda

int main(int argc, char** argv) {
  if (argc >= 2) return perseid::internal::cuda::build(argv[1], std::span(argv + 2, argv + argc));
  std::fprintf(stderr, "usage: perseid-pack FILE [TEXT...]\n");
  return 2;
}
