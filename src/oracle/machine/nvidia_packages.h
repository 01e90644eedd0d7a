// Folders of NVIDIA's packages for Python, which torch requires: they hold cuBLASLt and NCCL where
// no toolkit is.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace moracle {

/// Folders nvidia/*/lib beside the package that holds `file`: SITE/moracle/_moracle.so or
/// SITE/moracle/bin/moracle.
std::vector<std::string> nvidia_package_folders(const std::filesystem::path& file);

/// The same for the library or program that this code is linked into.
std::vector<std::string> nvidia_package_folders();

}  // namespace moracle
