
module RefModule (
  input [63:0] in,
  output logic [6:0] out
);

  always_comb begin
    out = 0;
    for (int i = 0; i < 64; i++) out += 7'(in[i]);
  end

endmodule

