// One digit, 0 to MODULUS - 1. With both `inc` and `dec`, or neither, it stays.
module digit_counter #(
    parameter MODULUS = 12
) (
    input  logic       clk,
    input  logic       rst,  // synchronous, active high
    input  logic       inc,
    input  logic       dec,
    output logic [3:0] digit,
    output logic       carry,  // combinational: the digit wraps upwards at the coming edge
    output logic       borrow  // combinational: the digit wraps downwards at the coming edge
);

    assign carry  = inc & ~dec & (digit == MODULUS - 1);
    assign borrow = dec & ~inc & (digit == 0);

    always_ff @(posedge clk) begin
        if (rst) digit <= 4'd0;
        else if (carry) digit <= 4'd0;
        else if (borrow) digit <= MODULUS - 1;
        else if (inc & ~dec) digit <= digit + 4'd1;
        else if (dec & ~inc) digit <= digit - 4'd1;
    end

endmodule
