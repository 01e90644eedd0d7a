#if defined(MORACLE_WITH_OPENCL)
#include <mutex>

#include "oracle/machine/detect.h"
#include "oracle/machine/opencl_api.h"

namespace moracle {
namespace opencl {
namespace {

// Reads the device's extension list, because the compiler's support is what counts.
GpuFeature features_of(const Api& cl, cl_device_id device) {
  const std::string extensions = " " + text_of(cl, device, CL_DEVICE_EXTENSIONS) + " ";
  constexpr std::pair<const char*, GpuFeature> kKnown[] = {
      {" cl_khr_subgroups ", GpuFeature::kSubgroups},
      {" cl_intel_subgroups ", GpuFeature::kSubgroups},
      {" cl_intel_subgroup_matrix_multiply_accumulate ", GpuFeature::kMatrix},
      {" cl_khr_int64_extended_atomics ", GpuFeature::kAtomics64}};
  GpuFeature features = GpuFeature::kNone;
  for (const auto& [extension, feature] : kKnown) {
    if (extensions.find(extension) != extensions.npos) features = features | feature;
  }
  const auto shared = value_of<cl_device_svm_capabilities>(cl, device, CL_DEVICE_SVM_CAPABILITIES);
  if ((shared & CL_DEVICE_SVM_COARSE_GRAIN_BUFFER) != 0)
    features = features | GpuFeature::kSharedPointers;
  const auto type = value_of<cl_device_type>(cl, device, CL_DEVICE_TYPE);
  if ((type & CL_DEVICE_TYPE_CPU) != 0) features = features | GpuFeature::kCpuCores;
  return features;
}

GpuInfo info_of(const Api& cl, cl_device_id device, int index) {
  return {.platform = Platform::kOpenCl,
          .index = index,
          .model = text_of(cl, device, CL_DEVICE_NAME),
          .memory_bytes =
              static_cast<int64_t>(value_of<cl_ulong>(cl, device, CL_DEVICE_GLOBAL_MEM_SIZE)),
          .shared_memory_bytes =
              static_cast<int64_t>(value_of<cl_ulong>(cl, device, CL_DEVICE_LOCAL_MEM_SIZE)),
          .features = features_of(cl, device),
          .max_allocation_bytes =
              static_cast<int64_t>(value_of<cl_ulong>(cl, device, CL_DEVICE_MAX_MEM_ALLOC_SIZE))};
}

}  // namespace
}  // namespace opencl

std::vector<GpuInfo> detect_opencl() {
  // PoCL 3.1 crashes if a second thread asks for devices while the first still starts them.
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  std::vector<GpuInfo> found;
  for (cl_device_id device : opencl::device_ids())
    found.push_back(opencl::info_of(*opencl::api(), device, static_cast<int>(found.size())));
  return found;
}

}  // namespace moracle
#endif
