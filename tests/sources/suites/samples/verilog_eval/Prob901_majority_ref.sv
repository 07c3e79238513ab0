
module RefModule (
  input a,
  input b,
  input c,
  output m
);

  assign m = (a & b) | (a & c) | (b & c);

endmodule

