#pragma once

#include <string>

namespace moracle::testing {

// Folders of the source tree, and the command. They are definitions of paths.cc alone: other
// objects are the same in every clone, so ccache finds them.
std::string golden_dir();
std::string docs_dir();
std::string models_dir();
std::string checkpoints_dir();        // full checkpoints; they may be missing
std::string published_configs_dir();  // config.json files of published models; it may be missing
std::string command_path();

}  // namespace moracle::testing
