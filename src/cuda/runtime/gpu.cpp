// SPDX-FileCopyrightText: 2026 The Perseid Authors
// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime/gpu.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "cuda/runtime/cache.hpp"

namespace perseid::internal::cuda {
namespace {

constexpr int32_t kOldestCapability = 80;
constexpr const char* kDeviceAdvice =
    "see what nvidia-smi and dmesg say of the GPU; a lost device needs a new process";

// The architecture that NVRTC compiles for: the device's own if NVRTC knows it, else PTX of the
// newest older one, which the driver compiles to machine code.
std::string architecture_of(int32_t major, int32_t minor) {
  if (major == 8) return "sm_80";
  if (major == 9) return "sm_90a";
  const int32_t own = 10 * major + minor;
  std::vector<int32_t> known;
  if (!compiler_architectures(&known).ok() || known.empty()) return concatenate("sm_", own);
  if (std::find(known.begin(), known.end(), own) != known.end()) return concatenate("sm_", own);
  int32_t newest = kOldestCapability;
  for (const int32_t each : known)
    if (each <= own) newest = std::max(newest, each);
  return concatenate("compute_", newest);
}

// What is assumed of a compute capability: its GPU for servers that is sold most, or else the
// largest. After the vendor's data sheets. Of a capability between two of them what is assumed of
// the older one: shared memory, which kernels depend on, is that of the vendor's table.
struct Assumed {
  const char* name;
  int32_t capability, multiprocessors;
  int32_t l2_mib, shared_bytes;
  int64_t memory_gib;
};
constexpr Assumed kAssumed[] = {
    {"A100", 80, 108, 40, 166912, 80},          {"A40", 86, 84, 6, 101376, 48},
    {"Jetson AGX Orin", 87, 16, 4, 166912, 64}, {"L40S", 89, 142, 96, 101376, 48},
    {"H100", 90, 132, 50, 232448, 80},          {"B200", 100, 148, 126, 232448, 180},
    {"RTX 5090", 120, 170, 96, 101376, 32}};

// Of "sm_90", also "sm_90a", or 0.
int32_t capability_of(std::string_view text) {
  if (!text.starts_with("sm_")) return 0;
  text.remove_prefix(3);
  if (text.ends_with('a') || text.ends_with('f')) text.remove_suffix(1);
  int32_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, failure] = std::from_chars(text.data(), end, number);
  return failure == std::errc() && rest == end && text.size() <= 3 ? number : 0;
}

// Kernels of single rows compile in a tenth of the time of those that multiply tiles.
bool compiles_fast(const std::string& kernel) {
  for (const char* part : {"_prepare<", "_finish", "_combine<", "_fixup<"})
    if (kernel.find(part) != std::string::npos) return true;
  return false;
}

Status nothing_runs(const GpuFacts& facts) {
  return Status::error(PERSEID_UNSUPPORTED, "the context assumes a GPU (", facts.name,
                       "), on which nothing runs, expected one with a GPU; make it without assume");
}

}  // namespace

Status Gpu::assume(const std::string& capability, std::shared_ptr<Gpu>* gpu) {
  const int32_t wanted = capability_of(capability), major = wanted / 10, minor = wanted % 10;
  if (wanted < kOldestCapability)
    return Status::error(PERSEID_INVALID_ARGUMENT, "assume is \"", capability,
                         "\", expected sm_ and a compute capability from 8.0 on, such as sm_80, "
                         "sm_90 or sm_120");
  const Assumed* like = kAssumed;
  for (const Assumed& each : kAssumed)
    if (each.capability <= wanted) like = &each;
  const std::string kind =
      like->capability == wanted
          ? like->name
          : concatenate("compute capability ", major, ".", minor, " like ", like->name);
  static constexpr Driver kNone{};
  std::shared_ptr<Gpu> assumed(new Gpu(kNone, 0));
  assumed->facts_ = {.name = kind + ", assumed",
                     .major = major,
                     .minor = minor,
                     .multiprocessors = like->multiprocessors,
                     .l2_bytes = like->l2_mib << 20,
                     .shared_bytes = like->shared_bytes,
                     .memory_bytes = static_cast<size_t>(like->memory_gib) << 30,
                     .architecture = architecture_of(major, minor),
                     .assumed = true};
  *gpu = std::move(assumed);
  return {};
}

Gpu::Current::Current(const Gpu& gpu) : gpu_(gpu) {
  if (gpu.facts_.assumed) {
    status_ = nothing_runs(gpu.facts_);
    return;
  }
  // Frameworks keep the primary context current, and checking is cheaper than a push.
  ContextHandle current = nullptr;
  const Driver& driver = gpu.driver_;
  if (driver.context_current(&current) == kSuccess && current == gpu.context_) return;
  status_ = check(driver, driver.context_push(gpu.context_), "using the GPU's context",
                  "was the primary context of the device destroyed or reset? Make a new context");
  pushed_ = status_.ok();
}

Gpu::Current::~Current() {
  ContextHandle before = nullptr;
  if (pushed_) gpu_.driver_.context_pop(&before);
}

Status Gpu::open(int32_t index, std::shared_ptr<Gpu>* gpu, const std::string& architecture) {
  const char* disabled = std::getenv("PERSEID_DISABLE_CUDA");
  if (disabled != nullptr && *disabled != '\0' && std::string(disabled) != "0")
    return Status::error(PERSEID_UNSUPPORTED, "PERSEID_DISABLE_CUDA is \"", disabled,
                         "\"; unset it to use a GPU, or use kDLCPU");
  const Driver* loaded = nullptr;
  if (Status status = load_driver(&loaded); !status.ok()) return status;
  const Driver& driver = *loaded;
  int32_t count = 0;
  if (Status status = check(driver, driver.device_count(&count), "counting GPUs", kDeviceAdvice);
      !status.ok())
    return status;
  if (index < 0 || index >= count)
    return Status::error(PERSEID_INVALID_ARGUMENT, "device_index is ", index, ", expected 0 to ",
                         count - 1, ": the driver sees ", count, count == 1 ? " GPU" : " GPUs");

  std::shared_ptr<Gpu> opened(new Gpu(driver, index));
  GpuFacts& facts = opened->facts_;
  char name[256] = "";
  Result result = driver.device_get(&opened->device_, index);
  if (result == kSuccess) result = driver.device_name(name, sizeof name, opened->device_);
  if (result == kSuccess) result = driver.device_memory(&facts.memory_bytes, opened->device_);
  const auto read = [&](DeviceAttribute attribute, int32_t* value) {
    if (result == kSuccess) result = driver.device_attribute(value, attribute, opened->device_);
  };
  read(DeviceAttribute::kCapabilityMajor, &facts.major);
  read(DeviceAttribute::kCapabilityMinor, &facts.minor);
  read(DeviceAttribute::kMultiprocessors, &facts.multiprocessors);
  read(DeviceAttribute::kL2CacheBytes, &facts.l2_bytes);
  read(DeviceAttribute::kSharedBytesOfABlock, &facts.shared_bytes);
  facts.name = name;
  if (Status status = check(driver, result, "reading the GPU's properties", kDeviceAdvice);
      !status.ok())
    return status;
  if (10 * facts.major + facts.minor < kOldestCapability)
    return Status::error(PERSEID_UNSUPPORTED, "GPU ", index, ", ", facts.name,
                         ", has compute capability ", facts.major, ".", facts.minor,
                         ", expected 8.0 (Ampere) or newer; use kDLCPU");
  facts.architecture =
      architecture.empty() ? architecture_of(facts.major, facts.minor) : architecture;
  if (Status status = check(driver, driver.context_retain(&opened->context_, opened->device_),
                            "opening the GPU's context", kDeviceAdvice);
      !status.ok()) {
    opened->context_ = nullptr;
    return status;
  }
  kernel_pack();  // read now, so that the first plan need not
  *gpu = std::move(opened);
  return {};
}

Gpu::~Gpu() {
  if (context_ == nullptr) return;
  if (!loaded_.empty()) wait_reports_->observers().drain();  // unloading waits as loading does
  {
    const Current current(*this);
    if (current.status().ok())
      for (const auto& [key, loaded] : loaded_)
        for (const ModuleHandle handle : loaded.modules) driver_.module_unload(handle);
    wait_reports_.reset();
  }
  driver_.context_release(device_);
}

Status Gpu::find_images(std::span<const Program> programs, bool compiles,
                        std::vector<std::vector<Image>>* images) const {
  images->resize(programs.size());
  // Kernels that the pack lacks are programs of their own, which several programs may share.
  struct Part {
    Program program;
    std::string key;
    Image image;
  };
  std::vector<Part> parts;
  std::map<std::string, size_t> numbers;                       // of parts, by key
  std::vector<std::vector<size_t>> parts_of(programs.size());  // none: the pack has the program
  Version version;
  for (size_t i = 0; i < programs.size(); ++i) {
    const Program& whole = programs[i];
    std::vector<Image>& own = (*images)[i];
    own.resize(1);
    if (kernel_pack().find(key_of(whole, nullptr), &own[0]) &&
        own[0].names.size() == whole.kernels.size())
      continue;
    if (version.major == 0)
      if (Status status = compiler_version(&version); !status.ok()) return status;
    for (const std::string& kernel : whole.kernels) {
      Part part{{whole.header, {kernel}, whole.architecture, whole.text}, "", {}};
      part.key = key_of(part.program, &version);
      const auto [number, is_new] = numbers.emplace(part.key, parts.size());
      if (is_new) parts.push_back(std::move(part));
      parts_of[i].push_back(number->second);
    }
  }
  const std::string folder = cache_folder();
  std::vector<Part*> missing;
  for (Part& part : parts) {
    if (load_cached(folder, part.key, &part.image) && part.image.names.size() == 1) continue;
    if (!compiles) return Status::error(PERSEID_UNSUPPORTED, "not compiled before");
    missing.push_back(&part);
  }
  std::stable_partition(missing.begin(), missing.end(),
                        [](const Part* part) { return !compiles_fast(part->program.kernels[0]); });
  std::vector<Program> sources;
  for (const Part* part : missing) sources.push_back(part->program);
  std::vector<Image> compiled(sources.size());
  const std::vector<Status> statuses = compile_side_by_side(sources, compiled);
  Status status;
  for (size_t i = 0; i < compiled.size(); ++i) {
    if (statuses[i].ok()) store_cached(folder, missing[i]->key, compiled[i]);
    if (status.ok()) status = statuses[i];
    missing[i]->image = std::move(compiled[i]);
  }
  for (size_t i = 0; i < programs.size(); ++i) {
    if (parts_of[i].empty()) continue;
    (*images)[i].clear();
    for (const size_t number : parts_of[i]) (*images)[i].push_back(parts[number].image);
  }
  return status;
}

bool Gpu::is_packed(const KernelNames& kernels) const {
  return kernel_pack().has(key_of({kernels.header, kernels.names, facts_.architecture}, nullptr));
}

bool Gpu::is_compiled(const KernelNames& kernels) const {
  const Program program{kernels.header, kernels.names, facts_.architecture};
  std::vector<std::vector<Image>> images;
  return !facts_.assumed && find_images({&program, 1}, false, &images).ok();
}

Status Gpu::load_images(const std::vector<Image>& images, Loaded* loaded) const {
  // Loading waits for all work of the context, and holds up what would end that work's waits.
  wait_reports_->observers().drain();
  const Current current(*this);
  if (!current.status().ok()) return current.status();
  std::vector<ModuleHandle> modules;
  modules.reserve(images.size());
  std::vector<Kernel> kernels;
  Result result = kSuccess;
  std::string doing;
  for (const Image& image : images) {
    if (result != kSuccess) break;
    ModuleHandle handle = nullptr;
    doing = concatenate("loading the kernel ", image.names.empty() ? "" : image.names.front(),
                        " onto the GPU");
    result = driver_.module_load(&handle, image.code.c_str());
    if (result == kSuccess) modules.push_back(handle);
    for (const std::string& name : image.names) {
      Kernel kernel;
      if (result == kSuccess)
        result = driver_.module_function(&kernel.function, handle, name.c_str());
      if (result == kSuccess)
        result = driver_.function_attribute(&kernel.registers, FunctionAttribute::kRegisters,
                                            kernel.function);
      if (result == kSuccess)
        result = driver_.function_attribute(&kernel.local_bytes, FunctionAttribute::kLocalBytes,
                                            kernel.function);
      if (result == kSuccess && facts_.has_clusters())
        result = driver_.function_set(kernel.function, FunctionAttribute::kLargeClusters, 1);
      kernels.push_back(kernel);
    }
  }
  if (Status status = check(driver_, result, doing.c_str(), kDeviceAdvice); !status.ok()) {
    for (const ModuleHandle handle : modules) driver_.module_unload(handle);
    return status;
  }
  loaded->modules = std::move(modules);
  loaded->kernels = std::move(kernels);
  return {};
}

Gpu::Loaded& Gpu::loaded(const std::string& key) {
  const std::lock_guard lock(mutex_);
  return loaded_[key];
}

Status Gpu::load_ahead(std::span<const KernelNames> kernels) {
  if (facts_.assumed) return {};
  std::map<std::string, size_t> numbers;  // by key
  for (size_t i = 0; i < kernels.size(); ++i)
    numbers.emplace(key_of({kernels[i].header, kernels[i].names, facts_.architecture}, nullptr), i);
  // Locked in the order of keys, so that no two threads wait for each other; compiled in the
  // caller's.
  std::vector<std::unique_lock<std::mutex>> locks;
  std::map<size_t, Loaded*> unloaded;
  for (const auto& [key, number] : numbers) {
    Loaded& each = loaded(key);
    std::unique_lock lock(each.mutex);
    if (!each.kernels.empty()) continue;
    locks.push_back(std::move(lock));
    unloaded.emplace(number, &each);
  }
  std::vector<Program> missing;
  std::vector<Loaded*> to;
  for (const auto& [number, each] : unloaded) {
    missing.push_back({kernels[number].header, kernels[number].names, facts_.architecture});
    to.push_back(each);
  }
  if (missing.empty()) return {};
  std::vector<std::vector<Image>> images;
  Status status = find_images(missing, true, &images);
  for (size_t i = 0; i < missing.size() && status.ok(); ++i) status = load_images(images[i], to[i]);
  return status;
}

Status Gpu::load(const std::string& header, const std::vector<std::string>& names,
                 std::vector<Kernel>* kernels) {
  if (facts_.assumed) {
    kernels->assign(names.size(), {});
    return {};
  }
  const Program program{header, names, facts_.architecture};
  Loaded& own = loaded(key_of(program, nullptr));
  const std::lock_guard loading(own.mutex);
  if (own.kernels.empty()) {
    std::vector<std::vector<Image>> images;
    Status status = find_images({&program, 1}, true, &images);
    if (status.ok()) status = load_images(images[0], &own);
    if (!status.ok()) return status;
  }
  *kernels = own.kernels;
  return {};
}

Status Gpu::load_kept(Kept which, const char* header, std::vector<std::string> (*names)(),
                      const std::vector<Kernel>** kernels) {
  std::vector<Kernel>& kept = kept_[static_cast<size_t>(which)];
  *kernels = &kept;
  {
    const std::lock_guard lock(kept_mutex_);
    if (!kept.empty()) return {};
  }
  std::vector<Kernel> loaded;
  const Status status = load(header, names(), &loaded);
  const std::lock_guard lock(kept_mutex_);
  if (status.ok() && kept.empty()) kept = std::move(loaded);
  return status;
}

void Gpu::add_reachable(const void* data, size_t bytes) {
  const std::lock_guard lock(reachable_mutex_);
  reachable_.emplace_back(static_cast<const std::byte*>(data), bytes);
}

void Gpu::remove_reachable(const void* data) {
  const std::lock_guard lock(reachable_mutex_);
  std::erase_if(reachable_, [&](const auto& memory) { return memory.data() == data; });
}

bool Gpu::is_reachable(const void* data) const {
  const auto* const at = static_cast<const std::byte*>(data);
  const std::lock_guard lock(reachable_mutex_);
  return std::any_of(reachable_.begin(), reachable_.end(), [&](const auto& memory) {
    return memory.data() <= at && at < memory.data() + memory.size();
  });
}

Status Gpu::allow_shared(const Kernel& kernel, int32_t bytes) const {
  if (facts_.assumed) return {};
  const Current current(*this);
  if (!current.status().ok()) return current.status();
  return check(driver_,
               driver_.function_set(kernel.function, FunctionAttribute::kDynamicSharedBytes, bytes),
               "reserving shared memory for a kernel", kDeviceAdvice);
}

Status Gpu::launch(const Kernel& kernel, const Launch& launch, const void* arguments,
                   void* stream) const {
  if (facts_.assumed) return nothing_runs(facts_);
  if (launch.blocks == 0) return {};
  if (launch.blocks > kMostBlocks)
    return Status::error(PERSEID_UNSUPPORTED, "a launch of ", launch.blocks,
                         " blocks was needed, expected at most ", kMostBlocks,
                         "; divide the problem");
  LaunchAttribute attributes[3] = {};
  uint32_t count = 0;
  if (launch.cluster > 1) {
    LaunchAttribute& cluster = attributes[count++];
    cluster.id = LaunchAttribute::Id::kClusterDimension;
    cluster.cluster[0] = static_cast<uint32_t>(launch.cluster);
    cluster.cluster[1] = cluster.cluster[2] = 1;
  }
  if (launch.cooperative) {
    LaunchAttribute& cooperative = attributes[count++];
    cooperative.id = LaunchAttribute::Id::kCooperative;
    cooperative.flag = 1;
  }
  if (launch.dependent && facts_.has_clusters()) {
    LaunchAttribute& dependent = attributes[count++];
    dependent.id = LaunchAttribute::Id::kProgrammaticSerialization;
    dependent.flag = 1;
  }
  const LaunchConfig config{{static_cast<uint32_t>(launch.blocks), 1, 1},
                            {static_cast<uint32_t>(launch.threads), 1, 1},
                            static_cast<uint32_t>(launch.shared_bytes),
                            static_cast<StreamHandle>(stream),
                            attributes,
                            count};
  void* parameters[] = {const_cast<void*>(arguments)};
  return check(driver_, driver_.launch(&config, kernel.function, parameters, nullptr),
               "launching a kernel", kDeviceAdvice);
}

}  // namespace perseid::internal::cuda
