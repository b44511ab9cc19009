// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
// NVRTC that compiles nothing: images are the names of their kernels. Counts what is compiled, and
// how many compilations run at the same time (fake_nvrtc.hpp).
#include "fake_nvrtc.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int32_t kFailed = 6;

struct Program {
  std::vector<std::string> kernels;
  std::string log;
};

std::mutex mutex;
std::condition_variable began;
std::string failing;
std::deque<std::string> kernels;  // of compilations, in the order in which they began
std::atomic<std::chrono::milliseconds> delay{};
int32_t wanted = 1, running = 0, most_at_once = 0, most_kernels = 0, met = 0;

int32_t copy(const std::string& from, char* to) {
  std::memcpy(to, from.c_str(), from.size() + 1);
  return 0;
}

}  // namespace

extern "C" {

void fake_nvrtc_meet(int32_t compilations) {
  const std::lock_guard lock(mutex);
  wanted = compilations;
}
void fake_nvrtc_delay(int32_t milliseconds) { delay = std::chrono::milliseconds(milliseconds); }
void fake_nvrtc_fail(const char* text) {
  const std::lock_guard lock(mutex);
  failing = text == nullptr ? "" : text;
}
void fake_nvrtc_clear() {
  const std::lock_guard lock(mutex);
  kernels.clear();
  most_at_once = most_kernels = met = 0;
}
int32_t fake_nvrtc_compiled() {
  const std::lock_guard lock(mutex);
  return static_cast<int32_t>(kernels.size());
}
int32_t fake_nvrtc_most_at_once() {
  const std::lock_guard lock(mutex);
  return most_at_once;
}
int32_t fake_nvrtc_most_kernels() {
  const std::lock_guard lock(mutex);
  return most_kernels;
}
const char* fake_nvrtc_kernel(int32_t number) {
  const std::lock_guard lock(mutex);
  return kernels.at(static_cast<size_t>(number)).c_str();
}

int32_t nvrtcVersion(int32_t* major, int32_t* minor) {
  *major = 13;
  *minor = 0;
  return 0;
}
int32_t nvrtcGetNumSupportedArchs(int32_t* count) {
  *count = 1;
  return 0;
}
int32_t nvrtcGetSupportedArchs(int32_t* architectures) {
  *architectures = 90;
  return 0;
}
const char* nvrtcGetErrorString(int32_t) { return "a fault that was asked for"; }

int32_t nvrtcCreateProgram(Program** made, const char*, const char*, int32_t, const char* const*,
                           const char* const*) {
  *made = new Program;
  return 0;
}
int32_t nvrtcDestroyProgram(Program** program) {
  delete *program;
  *program = nullptr;
  return 0;
}
int32_t nvrtcAddNameExpression(Program* program, const char* kernel) {
  program->kernels.emplace_back(kernel);
  return 0;
}
int32_t nvrtcCompileProgram(Program* program, int32_t, const char* const*) {
  std::unique_lock lock(mutex);
  kernels.push_back(program->kernels.at(0));
  most_kernels = std::max(most_kernels, static_cast<int32_t>(program->kernels.size()));
  most_at_once = std::max(most_at_once, ++running);
  // Once so many have met, nobody waits for more.
  if (running >= wanted) met = wanted;
  began.notify_all();
  began.wait_for(lock, std::chrono::seconds(10), [] { return met >= wanted; });
  lock.unlock();
  std::this_thread::sleep_for(delay.load());
  lock.lock();
  --running;
  for (const std::string& kernel : program->kernels)
    if (!failing.empty() && kernel.find(failing) != std::string::npos) {
      program->log = "error in " + kernel;
      return kFailed;
    }
  return 0;
}
int32_t nvrtcGetLoweredName(Program* program, const char* kernel, const char** name) {
  for (const std::string& each : program->kernels)
    if (each == kernel) *name = each.c_str();
  return 0;
}
int32_t nvrtcGetProgramLogSize(Program* program, size_t* bytes) {
  *bytes = program->log.size() + 1;
  return 0;
}
int32_t nvrtcGetProgramLog(Program* program, char* text) { return copy(program->log, text); }
int32_t nvrtcGetCUBINSize(Program* program, size_t* bytes) {
  *bytes = program->kernels.at(0).size() + 1;
  return 0;
}
int32_t nvrtcGetCUBIN(Program* program, char* code) { return copy(program->kernels.at(0), code); }
int32_t nvrtcGetPTXSize(Program* program, size_t* bytes) {
  return nvrtcGetCUBINSize(program, bytes);
}
int32_t nvrtcGetPTX(Program* program, char* code) { return nvrtcGetCUBIN(program, code); }
}
