module bcd_top #(parameter N = 4) (
    input  [4*N-1:0] A,
    input  [4*N-1:0] B,
    output           A_less_B,
    output           A_equal_B,
    output           A_greater_B
);
    wire [4*N-1:0] difference;

    multi_digit_bcd_add_sub #(.N(N)) minus (
        .A(A), .B(B), .add_sub(1'b0), .result(difference), .carry_borrow(A_less_B)
    );

    assign A_equal_B = !A_less_B && difference == 0;
    assign A_greater_B = !A_less_B && difference != 0;
endmodule
