// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/compiler.hpp"

#include <sched.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <system_error>
#include <thread>

#include "cuda/runtime/hash.hpp"
#include "cuda/runtime/library.hpp"
#include "cuda/runtime/sources.hpp"

namespace perseid::internal::cuda {
namespace {

using ProgramHandle = struct ProgramObject*;
using CompilerResult = int32_t;

struct Compiler {
  CompilerResult (*version)(int32_t* major, int32_t* minor);
  CompilerResult (*architecture_count)(int32_t* count);
  CompilerResult (*architectures)(int32_t* architectures);
  const char* (*error_string)(CompilerResult result);
  CompilerResult (*create)(ProgramHandle*, const char* source, const char* name, int32_t headers,
                           const char* const* texts, const char* const* paths);
  CompilerResult (*destroy)(ProgramHandle*);
  CompilerResult (*add_name)(ProgramHandle, const char* expression);
  CompilerResult (*compile)(ProgramHandle, int32_t options, const char* const* option);
  CompilerResult (*lowered_name)(ProgramHandle, const char* expression, const char** name);
  CompilerResult (*log_size)(ProgramHandle, size_t* bytes);
  CompilerResult (*log)(ProgramHandle, char* text);
  CompilerResult (*cubin_size)(ProgramHandle, size_t* bytes);
  CompilerResult (*cubin)(ProgramHandle, char* code);
  CompilerResult (*ptx_size)(ProgramHandle, size_t* bytes);
  CompilerResult (*ptx)(ProgramHandle, char* code);
};

struct Loaded {
  Compiler compiler{};
  Status status;
};

// Paths where NVRTC may be, the caller's choice first.
std::vector<std::string> library_paths() {
  const auto variable = [](const char* name) {
    // The caller of a privileged (setuid) program must not choose its compiler.
    const char* value = secure_getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  const std::string chosen = variable("PERSEID_NVRTC");
  if (!chosen.empty()) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(chosen, ignored)) return {chosen};
  }
  std::vector<std::string> folders;
  if (!chosen.empty()) folders = {chosen + "/", chosen + "/lib/"};
  folders.emplace_back("");
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"})
    if (const std::string home = variable(name); !home.empty()) {
      folders.push_back(home + "/lib64/");
      folders.push_back(home + "/lib/");
    }
  folders.emplace_back("/usr/local/cuda/lib64/");
  // The layouts of nvidia-cuda-nvrtc and nvidia-cuda-nvrtc-cu12 in an active virtual environment.
  if (const std::string environment = variable("VIRTUAL_ENV"); !environment.empty()) {
    std::error_code failure;
    for (std::filesystem::directory_iterator python(environment + "/lib", failure), end;
         !failure && python != end; python.increment(failure)) {
      const std::string packages = python->path().string() + "/site-packages/nvidia/";
      for (const char* folder : {"cu13/lib/", "cuda_nvrtc/lib/"})
        folders.push_back(packages + folder);
    }
  }
  std::vector<std::string> names;
  for (const std::string& folder : folders)
    for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"})
      names.push_back(folder + name);
  return names;
}

Loaded load() {
  Loaded loaded;
  Compiler& compiler = loaded.compiler;
  SharedLibrary library;
  loaded.status = library.open(
      "NVRTC, the compiler of GPU kernels,",
      "install a CUDA toolkit or the PyPI package nvidia-cuda-nvrtc, or set PERSEID_NVRTC to the "
      "folder or file that has it",
      library_paths());
  if (!loaded.status.ok()) return loaded;
  library.find("nvrtcVersion", &compiler.version);
  library.find("nvrtcGetNumSupportedArchs", &compiler.architecture_count);
  library.find("nvrtcGetSupportedArchs", &compiler.architectures);
  library.find("nvrtcGetErrorString", &compiler.error_string);
  library.find("nvrtcCreateProgram", &compiler.create);
  library.find("nvrtcDestroyProgram", &compiler.destroy);
  library.find("nvrtcAddNameExpression", &compiler.add_name);
  library.find("nvrtcCompileProgram", &compiler.compile);
  library.find("nvrtcGetLoweredName", &compiler.lowered_name);
  library.find("nvrtcGetProgramLogSize", &compiler.log_size);
  library.find("nvrtcGetProgramLog", &compiler.log);
  library.find("nvrtcGetCUBINSize", &compiler.cubin_size);
  library.find("nvrtcGetCUBIN", &compiler.cubin);
  library.find("nvrtcGetPTXSize", &compiler.ptx_size);
  library.find("nvrtcGetPTX", &compiler.ptx);
  loaded.status = library.result();
  return loaded;
}

const Loaded& loaded() {
  static const Loaded kLoaded = load();
  return kLoaded;
}

// A program that NVRTC knows, destroyed with its scope.
class Compilation {
 public:
  explicit Compilation(const Compiler& compiler) : compiler_(compiler) {}
  ~Compilation() {
    if (handle_ != nullptr) compiler_.destroy(&handle_);
  }
  Compilation(const Compilation&) = delete;
  Compilation& operator=(const Compilation&) = delete;

  Status run(const Program& program, Image* image, std::string* log, const char* option) {
    std::vector<const char*> texts, paths;
    for (const Source& source : sources()) {
      texts.push_back(source.text);
      paths.push_back(source.path);
    }
    const std::string text = concatenate("#include \"", program.header, "\"\n", program.text);
    CompilerResult result =
        compiler_.create(&handle_, text.c_str(), "perseid.cu", static_cast<int32_t>(texts.size()),
                         texts.data(), paths.data());
    for (const std::string& kernel : program.kernels)
      if (result == 0) result = compiler_.add_name(handle_, kernel.c_str());
    const std::string architecture = "--gpu-architecture=" + program.architecture;
    std::vector<const char*> options = {"--std=c++20", "-default-device", architecture.c_str()};
    if (log != nullptr) options.push_back("--ptxas-options=-v");
    if (option != nullptr) options.push_back(option);
    if (result == 0)
      result = compiler_.compile(handle_, static_cast<int32_t>(options.size()), options.data());
    std::string said;
    if (handle_ != nullptr) read(compiler_.log_size, compiler_.log, &said);
    if (log != nullptr) *log = said;
    for (const std::string& kernel : program.kernels) {
      const char* name = "";
      if (result == 0) result = compiler_.lowered_name(handle_, kernel.c_str(), &name);
      image->names.emplace_back(name);
    }
    if (result == 0)
      result = program.architecture.starts_with("compute_")
                   ? read(compiler_.ptx_size, compiler_.ptx, &image->code)
                   : read(compiler_.cubin_size, compiler_.cubin, &image->code);
    if (result == 0) return {};
    constexpr size_t kEnough = 2000;
    return Status::error(PERSEID_DEVICE_ERROR, "NVRTC could not compile a kernel for ",
                         program.architecture, ": ", compiler_.error_string(result), "; ",
                         said.substr(0, kEnough));
  }

 private:
  CompilerResult read(CompilerResult (*size)(ProgramHandle, size_t*),
                      CompilerResult (*get)(ProgramHandle, char*), std::string* text) {
    size_t bytes = 0;
    CompilerResult result = size(handle_, &bytes);
    if (result != 0) return result;
    text->assign(bytes, '\0');
    return get(handle_, text->data());
  }

  const Compiler& compiler_;
  ProgramHandle handle_ = nullptr;
};

// CPUs that this thread may use.
unsigned cpus() {
  cpu_set_t usable;
  if (sched_getaffinity(0, sizeof usable, &usable) == 0)
    return static_cast<unsigned>(CPU_COUNT(&usable));
  return std::max(1u, std::thread::hardware_concurrency());
}

// Threads that help callers of compile_side_by_side(). All callers together have one less than
// there are CPUs.
class Helpers {
 public:
  template <class Work>
  Helpers(size_t wanted, const Work& work) {
    threads_.reserve(wanted);
    const unsigned most = cpus() - 1;
    while (threads_.size() < wanted && take(most)) {
      try {
        threads_.emplace_back(work);
      } catch (const std::system_error&) {  // the system has no more threads
        --busy;
        return;
      }
    }
  }
  ~Helpers() {
    for (std::thread& thread : threads_) {
      thread.join();
      --busy;
    }
  }
  Helpers(const Helpers&) = delete;
  Helpers& operator=(const Helpers&) = delete;

 private:
  static bool take(unsigned most) {
    unsigned now = busy;
    while (now < most)
      if (busy.compare_exchange_weak(now, now + 1)) return true;
    return false;
  }

  static inline std::atomic<unsigned> busy{0};
  std::vector<std::thread> threads_;
};

// A header and those that it includes, each once.
void add_sources(const std::string& path, std::set<std::string>* seen, Hash* hash) {
  if (!seen->insert(path).second) return;
  hash->add(path);
  for (const Source& source : sources()) {
    if (path != source.path) continue;
    const std::string_view text = source.text;
    hash->add(text);
    constexpr std::string_view kInclude = "\n#include \"";
    for (size_t at = text.find(kInclude); at != std::string_view::npos;
         at = text.find(kInclude, at + 1)) {
      const size_t begin = at + kInclude.size();
      add_sources(std::string(text.substr(begin, text.find('"', begin) - begin)), seen, hash);
    }
  }
}

}  // namespace

Status compiler_version(Version* version) {
  const Loaded& ready = loaded();
  if (ready.status.ok()) ready.compiler.version(&version->major, &version->minor);
  return ready.status;
}

Status compiler_architectures(std::vector<int32_t>* architectures) {
  const Loaded& ready = loaded();
  if (!ready.status.ok()) return ready.status;
  int32_t count = 0;
  if (ready.compiler.architecture_count(&count) != 0) count = 0;
  architectures->assign(static_cast<size_t>(count), 0);
  if (count > 0) ready.compiler.architectures(architectures->data());
  return {};
}

Status compile(const Program& program, Image* image, std::string* log, const char* option) {
  const Loaded& ready = loaded();
  if (!ready.status.ok()) return ready.status;
  *image = {};
  return Compilation(ready.compiler).run(program, image, log, option);
}

std::vector<Status> compile_side_by_side(std::span<const Program> programs,
                                         std::span<Image> images) {
  std::vector<Status> statuses(programs.size());
  std::vector<std::exception_ptr> thrown(programs.size());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < programs.size(); i = next++) {
      try {
        statuses[i] = compile(programs[i], &images[i]);
      } catch (...) {
        thrown[i] = std::current_exception();
      }
    }
  };
  if (!programs.empty()) {
    const Helpers helpers(programs.size() - 1, work);
    work();
  }
  for (const std::exception_ptr& each : thrown)
    if (each != nullptr) std::rethrow_exception(each);
  return statuses;
}

uint64_t source_hash(const std::string& header) {
  static std::mutex mutex;
  static std::map<std::string, uint64_t> known;
  const std::lock_guard lock(mutex);
  const auto [entry, missing] = known.emplace(header, 0);
  if (!missing) return entry->second;
  Hash hash;
  std::set<std::string> seen;
  add_sources(header, &seen, &hash);
  return entry->second = hash.value();
}

}  // namespace perseid::internal::cuda
