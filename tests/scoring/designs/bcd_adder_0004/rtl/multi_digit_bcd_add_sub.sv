module multi_digit_bcd_add_sub #(parameter N = 4) (
    input  [4*N-1:0] A,
    input  [4*N-1:0] B,
    input            add_sub,
    output [4*N-1:0] result,
    output           carry_borrow
);
    wire [N:0] carry;

    assign carry[0] = !add_sub;
    assign carry_borrow = add_sub ? carry[N] : !carry[N];

    genvar i;
    generate
        for (i = 0; i < N; i = i + 1) begin : digit
            wire [3:0] other = add_sub ? B[4*i +: 4] : 9 - B[4*i +: 4];
            bcd_adder one (.a(A[4*i +: 4]), .b(other), .cin(carry[i]), .sum(result[4*i +: 4]), .cout(carry[i+1]));
        end
    endgenerate
endmodule
