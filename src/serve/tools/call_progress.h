// Emits the arguments of calls while their block is incomplete.
#pragma once

#include <string>
#include <vector>

#include "serve/tools/answer_piece.h"
#include "serve/tools/call_heads.h"
#include "serve/tools/tool_format.h"

namespace moracle::serve {

/// Finds calls of offered tools in a growing block. JSON arguments come byte by byte, tagged ones
/// parameter by parameter. A block of another form emits nothing.
class CallProgress {
 public:
  /// Both must outlive this object.
  CallProgress(const ToolFormat& format, const OfferedTools& tools)
      : format_(&format), tools_(&tools) {}

  /// Adds the next text of the block.
  void push(std::string_view text, std::vector<AnswerPiece>& pieces);
  /// Ends the block. `is_whole`: closes a tagged call; a cut one stays open, as cut JSON does.
  void finish(bool is_whole, std::vector<AnswerPiece>& pieces);
  /// Number of calls with all arguments.
  size_t num_complete() const { return num_complete_; }
  /// Number of calls that have begun.
  size_t num_begun() const { return num_begun_; }

 private:
  enum class State { kHead, kJson, kTagged, kLost };
  bool read_head(std::vector<AnswerPiece>& pieces);
  bool read_json(std::vector<AnswerPiece>& pieces);
  bool read_tagged(std::vector<AnswerPiece>& pieces);
  void begin(std::string id, std::string_view name, std::vector<AnswerPiece>& pieces);
  void add(std::string text, std::vector<AnswerPiece>& pieces);

  const ToolFormat* format_;
  const OfferedTools* tools_;
  State state_ = State::kHead;
  std::string held_;     // text that is not consumed
  HeadSearch head_;      // of the next call
  size_t searched_ = 0;  // bytes of held_ without the end of a parameter
  std::string name_;     // of the current call
  int depth_ = 0;        // of JSON
  bool in_string_ = false, is_escaped_ = false;
  size_t num_parameters_ = 0, num_begun_ = 0, num_complete_ = 0;
};

}  // namespace moracle::serve
