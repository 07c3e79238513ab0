module verified_adder_clamp(
    input  [7:0] a,
    input  [7:0] b,
    output [7:0] y,
    output full
);
    wire [7:0] low;
    half_sum sum(.a(a), .b(b), .s(low), .carry(full));
    assign y = full ? 8'hff : low;
endmodule

module half_sum(input [7:0] a, b, output [7:0] s, output carry);
    assign {carry, s} = a + b;
endmodule
