#include "serve/dialects/answer_reader.h"

#include <utility>

namespace moracle::serve {

AnswerReader::AnswerReader(std::shared_ptr<const ToolUse> tools) : tools_(std::move(tools)) {
  if (tools_) calls_.emplace(tools_->format, tools_->tools);
}

std::vector<AnswerPiece> AnswerReader::push(std::string_view text) {
  std::vector<AnswerPiece> pieces;
  if (is_complete_) return pieces;
  if (calls_)
    add(calls_->push(text), pieces);
  else
    add(AnswerPart::Kind::kText, std::string(text), pieces);
  return pieces;
}

void AnswerReader::finish(bool is_whole, std::vector<AnswerPiece>& pieces) {
  if (calls_ && !is_complete_) add(calls_->finish(is_whole), pieces);
}

void AnswerReader::add(AnswerPart::Kind kind, std::string text, std::vector<AnswerPiece>& pieces) {
  if (text.empty()) return;
  const bool begins = last_ != kind;
  last_ = kind;
  pieces.push_back({.kind = kind, .text = std::move(text), .begins = begins});
}

void AnswerReader::add(ToolCallParser::Delta&& delta, std::vector<AnswerPiece>& pieces) {
  add(AnswerPart::Kind::kText, std::move(delta.text), pieces);
  for (ToolCall& call : delta.calls) {
    last_ = AnswerPart::Kind::kCall;
    pieces.push_back({.kind = AnswerPart::Kind::kCall,
                      .text = std::move(call.arguments),
                      .id = std::move(call.id),
                      .name = std::move(call.name),
                      .begins = true});
    is_complete_ = !tools_->parallel;
    if (is_complete_) return;
  }
}

}  // namespace moracle::serve
