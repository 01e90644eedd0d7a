// Streaming parser of GPT-OSS's answers: messages in channels, each with a header.
#pragma once

#include <vector>

#include "serve/tools/answer_piece.h"
#include "serve/tools/tool_call.h"

namespace moracle::serve {

class ChannelParser {
 public:
  /// `tools`: null if the request has none; must outlive this object.
  explicit ChannelParser(const OfferedTools* tools) : tools_(tools) {}

  /// Adds text, and returns what is decided. Arguments of calls come as they are generated.
  std::vector<AnswerPiece> push(std::string_view text);
  /// Returns the rest.
  std::vector<AnswerPiece> finish();
  bool has_calls() const { return has_calls_; }
  bool is_reasoning() const { return in_body_ && kind_ == AnswerPart::Kind::kReasoning; }

 private:
  bool read_header(std::vector<AnswerPiece>& pieces);
  bool read_body(std::vector<AnswerPiece>& pieces);
  void begin(std::string_view header, std::vector<AnswerPiece>& pieces);
  void add(std::string_view text, std::vector<AnswerPiece>& pieces);

  const OfferedTools* tools_;
  std::string held_;     // undecided text
  size_t searched_ = 0;  // bytes of an incomplete header without its end
  AnswerPart::Kind kind_ = AnswerPart::Kind::kText;
  bool in_body_ = false, begins_ = true, has_calls_ = false;
};

}  // namespace moracle::serve
