module tb_bcd_adder;
    reg  [3:0] a, b;
    reg        cin;
    wire [3:0] sum;
    wire       cout;
    integer    i;

    bcd_adder dut (.a(a), .b(b), .cin(cin), .sum(sum), .cout(cout));

    initial begin
        for (i = 0; i < 200; i = i + 1) begin
            a = i / 20;
            b = i / 2 % 10;
            cin = i % 2;
            #1 if (10 * cout + sum != a + b + cin) $error("%0d + %0d + %0d", a, b, cin);
        end
        $finish;
    end
endmodule
